"""Canaries around a real replay."""

import json

from loadgen.journal import RunFolder
from loadgen.replay import replay_in_loop
from loadgen.summarise import summarise

FILE = '- {name: capital, prompt: "The capital of France is", contains: Paris}\n'


def singing(engine, wire, *texts):
    """Let canaries, which do not stream, hear the texts in turn (None: status 500)."""
    left, stream = list(texts), engine.answer

    async def answer(request, writer):
        if request.body["stream"]:
            return await stream(request, writer)
        text = left.pop(0)
        body = json.dumps({"choices": [{"text": text, "finish_reason": "stop"}]}).encode()
        writer.write(wire.plain(500 if text is None else 200, body, "Content-Type: application/json"))
        return True

    engine.answer = answer


async def run(engine, asking, tmp_path):
    file = tmp_path / "canaries.yaml"
    file.write_text(FILE)
    folder = await replay_in_loop(asking(engine.url, canaries=file))
    return folder, [one.message for one in summarise(folder).warnings if one.code == "canary"]


async def test_canaries_that_sing_as_known_leave_no_warning(engine, wire, asking, tmp_path):
    singing(engine, wire, " Paris.", " Paris.")
    folder, warnings = await run(engine, asking, tmp_path)
    assert warnings == []
    assert folder.manifest()["canaries"]["after"] == [
        {"name": "capital", "text": " Paris.", "finish": "stop", "wrong": None}
    ]


async def test_a_canary_that_changes_over_the_run_is_a_warning(engine, wire, asking, tmp_path):
    singing(engine, wire, " Paris.", " Rome Rome")
    _, warnings = await run(engine, asking, tmp_path)
    assert warnings == [
        "canary 'capital' was right before the run and wrong after it: the answer does not contain 'Paris'"
    ]


async def test_a_canary_without_an_answer_is_a_wrong_one_and_the_run_goes_on(engine, wire, asking, tmp_path):
    singing(engine, wire, None, " Paris.")
    folder, warnings = await run(engine, asking, tmp_path)
    assert "status 500" in warnings[0]
    assert RunFolder(folder.path).manifest()["complete"]


async def test_texts_are_looked_at_when_asked_and_not_kept(engine, asking):
    folder = await replay_in_loop(asking(engine.url, rows=2, output=40, check_answers=True))
    assert [one.repeats for one in folder.results()] == [True, True]
    assert [one.code for one in summarise(folder).warnings if one.code == "answers"] == ["answers"]
    unseen = await replay_in_loop(asking(engine.url, rows=2, output=40, name="unseen"))
    assert [one.repeats for one in unseen.results()] == [None, None]
