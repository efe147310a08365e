// The registries of field options. A Grafana server fills them in its core, which is not on npm.
import { standardEditorsRegistry, standardFieldConfigEditorRegistry } from "@grafana/data";

const STANDARD = [
  "displayName", "unit", "min", "max", "decimals", "noValue", "color", "mappings", "thresholds", "links", "actions",
  "filterable", "description", "fieldMinMax",
];

/** Register the standard options, and each `custom` one that the dashboard sets. */
export function registerFields(board) {
  const custom = new Set();
  for (const panel of board.panels) {
    Object.keys(panel.fieldConfig?.defaults?.custom ?? {}).forEach((name) => custom.add(name));
    for (const override of panel.fieldConfig?.overrides ?? []) {
      for (const property of override.properties) {
        if (property.id.startsWith("custom.")) {
          custom.add(property.id.slice("custom.".length));
        }
      }
    }
  }
  standardFieldConfigEditorRegistry.setInit(() => [
    ...STANDARD.map((name) => option(name, name, false)),
    ...[...custom].map((name) => option(`custom.${name}`, name, true)),
  ]);
  standardEditorsRegistry.setInit(() => []);
}

function option(id, path, isCustom) {
  return {
    id, path, isCustom, name: id, editor: () => null, override: () => null, process: (value) => value,
    shouldApply: () => true, settings: {}, getItemsCount: () => 0,
  };
}
