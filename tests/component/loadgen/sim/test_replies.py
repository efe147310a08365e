"""Tokens on their way to a socket that does not take them."""

import orjson

from loadgen.sim.http_answers import Count, Finish, Label
from loadgen.sim.http_requests import Served, read_completion
from loadgen.sim.replies import StreamReply
from loadgen.sim.text import Voice

SERVED = Served("tiny", 16384)


class Pipe:
    """A transport whose reader can be slow."""

    def __init__(self):
        self.waiting = 0
        self.writes = []
        self.closing = False

    def get_write_buffer_size(self):
        return self.waiting

    def is_closing(self):
        return self.closing

    def write(self, data):
        self.writes.append(data)


def reply_for(**body):
    job = read_completion({"prompt": "x", "stream": True, **body}, SERVED)
    return StreamReply(job, Label("cmpl-1", 0, "tiny", chat=False), Count(1))


def events(pipe):
    frames = b"".join(pipe.writes).split(b"\n\n")
    return [orjson.loads(frame.removeprefix(b"data: ")) for frame in frames if frame and b"[DONE]" not in frame]


async def test_a_slow_reader_gets_several_tokens_in_one_event_and_loses_none():
    pipe, reply, voice = Pipe(), reply_for(), Voice(1)
    words = [voice.next() for _ in range(6)]
    reply.attach(pipe, framed=False)
    reply.token(0, words[0], None)
    pipe.waiting = 100_000
    for word in words[1:4]:
        reply.token(0, word, None)
    assert len(events(pipe)) == 1
    pipe.waiting = 0
    reply.token(0, words[4], None)
    reply.token(0, words[5], Finish("length", None))
    texts = [event["choices"][0]["text"] for event in events(pipe)]
    assert texts == [words[0].text, "".join(word.text for word in words[1:5]), words[5].text]
    assert reply.done.done()


async def test_a_reader_that_stays_slow_still_gets_the_end():
    pipe, reply, voice = Pipe(), reply_for(), Voice(1)
    reply.attach(pipe, framed=True)
    pipe.waiting = 100_000
    reply.token(0, voice.next(), None)
    reply.token(0, voice.next(), Finish("stop", None))
    assert len(pipe.writes) == 1
    assert pipe.writes[0].endswith(b"e\r\ndata: [DONE]\n\n\r\n")


async def test_tokens_made_before_the_head_is_out_wait_for_it():
    pipe, reply, voice = Pipe(), reply_for(), Voice(1)
    reply.token(0, voice.next(), None)
    reply.token(0, voice.next(), Finish("length", None))
    assert not reply.done.done()
    reply.attach(pipe, framed=False)
    assert reply.done.done()
    assert len(events(pipe)) == 1


async def test_nothing_is_written_to_a_connection_that_is_going():
    pipe, reply, voice = Pipe(), reply_for(), Voice(1)
    reply.attach(pipe, framed=False)
    pipe.closing = True
    reply.token(0, voice.next(), None)
    assert not pipe.writes
