"""Several workers told as one."""

from proxy.workers.merged import _BACKEND_SUMS, _LANE_SUMS, merged, merged_reply


def status(in_flight=0, waiting=0, *, ready=True, uptime=1.0, rejections=()):
    lane = dict.fromkeys(_LANE_SUMS, waiting)
    backend = dict.fromkeys(_BACKEND_SUMS, in_flight)
    return {
        "ready": ready,
        "reason": None if ready else "draining",
        "config": "abc",
        "uptime_s": uptime,
        "sharing": None,
        "lanes": [{"name": "short", "oldest_wait_s": waiting, "retry_after_s": 1.0, **lane}],
        "backends": [{"name": "card", "up": True, "concurrency": 8, **backend}],
        "rejections": list(rejections),
    }


def worker(number, document):
    return {"worker": number, "admin": f"127.0.0.1:{9100 + number}", "pid": 1, "restarts": 0, "status": document}


def test_amounts_are_added_and_limits_are_not():
    document = merged([worker(1, status(3, 2, uptime=9.0)), worker(2, status(4, 5))])
    assert document["backends"][0]["in_flight"] == 7
    assert document["backends"][0]["concurrency"] == 8
    assert document["lanes"][0]["waiting_requests"] == 7
    assert document["lanes"][0]["oldest_wait_s"] == 5
    assert document["uptime_s"] == 9.0
    assert [row["in_flight"] for row in document["workers"]] == [3, 4]


def test_one_that_is_ready_is_enough():
    document = merged([worker(1, None), worker(2, status(ready=False)), worker(3, status())])
    assert document["ready"]
    assert [(row["up"], row["ready"]) for row in document["workers"]] == [(False, False), (True, False), (True, True)]


def test_nobody_there_is_not_ready():
    assert merged([worker(1, None)])["reason"] == "no worker answers"


def test_the_last_rejections_of_all_are_told_the_latest_first():
    document = merged(
        [worker(1, status(rejections=[{"at": "2026-01-01T00:00:02Z"}])),
         worker(2, status(rejections=[{"at": "2026-01-01T00:00:01Z"}, {"at": "2026-01-01T00:00:03Z"}]))]
    )  # fmt: skip
    assert [one["at"][17:19] for one in document["rejections"]] == ["03", "02", "01"]


def test_an_order_is_done_where_all_did_it():
    done = {"done": True, "sentences": ["configuration a is in force"], "changed": ["x: 1 -> 2"], "warnings": []}
    assert merged_reply([done, done])["changed"] == ["x: 1 -> 2"]
    reply = merged_reply([done, {"done": False, "sentences": ["worker 2: nobody is there"]}])
    assert reply["done"] is False
    assert reply["sentences"] == ["configuration a is in force", "worker 2: nobody is there"]
