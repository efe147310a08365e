"""The page of a replay on a real socket."""

import aiohttp
import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from loadgen.failure import UsageError
from loadgen.telemetry.exposed import LoadMetrics, LoadPage, RunFacts, Running


@pytest.fixture
async def page():
    metrics = LoadMetrics(
        np.array([0], dtype=np.int64),
        RunFacts(run_id="run", arm="a", trace_sha="1", seed=1),
        lambda: Running(0.5, 1.0, 1, 0, [0]),
    )
    made = LoadPage("127.0.0.1:0", metrics)
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("accept", "reader"), [("text/plain", read_text), ("application/openmetrics-text", read_openmetrics)]
)
async def test_it_is_read_in_both_formats(page, accept, reader):
    address = await page.start()
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{address}/metrics", headers={"Accept": accept}) as answer,
    ):
        names = {family.name for family in reader(await answer.text())}
    assert {"lanewise_load_sent", "lanewise_load_run_info", "process_cpu_seconds"} <= names


async def test_an_address_in_use_is_an_error_that_names_the_option(page):
    address = await page.start()
    with pytest.raises(UsageError, match=f"--prometheus {address}: "):
        await LoadPage(address, page._metrics).start()
