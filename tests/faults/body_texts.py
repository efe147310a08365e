"""JSON documents and strings that have broken parsers, loggers and terminals before; our own selection."""
# ruff: noqa: E501 - tables of documents

import json
from collections.abc import Callable
from typing import Any

from tests.faults.wire import chat

_VALID = r"""
[] {} [[]] [{}] {"":0} {"a":[]} {"a":{"b":{"c":null}}} true false null 0 -0 1 -1 1.5 -1.5e-3 1E5 1e+2 0.1e1 0e1 0e+1
123456789 1.7976931348623157e308 5e-324 123123e-10000000 9007199254740993 18446744073709551615 "" "a" "\"" "\\" "\/"
"\b\f\n\r\t" "\u0000" "\u0012" "\u00e9" "\ud83d\ude00" "\uDBFF\uDFFF" "\u2028" "\uFFFF" "\u0022" "a\u0000b" {"a":1,"b":2}
{"a":1,"a":2} {"a":"b","a":"b"} {"\u0000":1} [1,2,3] [1,[2,[3]]] [null,1,"1",{}] [""] [-0] [-1] [1e-2] ["\u002c"] [0.0001]
{"min":-1.0e+28,"max":1.0e+28} {"x":[{"id":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}],"id":"b"} ["asd"] [20e1] ["new\u000Aline"]
["\u0821"] ["\u0123"] ["\uD801\udc37"] ["\u005C"] {"title":"\u041f\u043e\u043b"} [true,false,null] [[[[[[[[[[]]]]]]]]]]
"""
_VALID_BYTES = ["é".encode(), "€".encode(), "😀".encode(), "\u2028".encode(), b"\x7f", "\ufeff".encode()]
_BROKEN = r"""
[ ] { } [1 [1, [,1] [1,] [1,,2] [,] [[1] [1]] {"a" {"a": {"a":1 {"a":1, {"a":1,} {,} {a:1} {'a':1} {"a":1}} {"a"b} {"a":"a
{"a":'b'} {"a":1"b":2} {1:2} {null:1} {[]:1} {"a":[} {"a":1]} nul tru fals True None nan NaN Infinity -Infinity inf -inf
+1 01 -01 -012 .5 -.5 5. -5. 1.e1 1e 1e+ 1E- 0e 0e+ 0.3e 0x1 0x42 1_000 1a -a - -- 1-1 ++1 1.2.3 9.e+ 2.e3 -2. 1eE2 0.e1
" "a 'a' "\x" "\u" "\u1" "\u12" "\u123" "\u123g" "\uD800\u" "\a" "\0" "\'" "\ a" "\" a" [a] [1:2] ["a":1] ["a" ["a", ["x"
/**/1 //1 {"a":1}/**/ {"a":1}// {"a":1}#{} [1]x {}x {}{} [][] 1,2 "a""b" ; : , <.> <null> [<null>] *{} "a\ ["\"] abc d"a
"""
_BROKEN_BYTES = [
    b"",
    b'"\xff"',
    b'"\xc0\x80"',
    b'"\xe9"',
    b'"\xed\xa0\x80"',
    b'"\xf4\x90\x80\x80"',
    b'"\xf8\x88\x80\x80\x80"',
    b'"a\x00b"',
    b'"\n"',
    b'"\t"',
    b"\x00",
    b"[1\x00]",
    b"\xa0",
    b"[\x0c]",
    b"\xe2\x81\xa0",
    b"[" * 5000,
    b'{"a":' * 5000,
    b"\xef\xbb\xbf1",
]
_DEBATABLE = r"""
1e400 -1e400 1e999 -1e999 123456789012345678901234567890 -123456789012345678901234567890 "\ud800" "\udc00" "\ud800\ud800"
"\udc00\ud800" "\ud800a" ["\uDADA"] ["\uD888\u1234"] ["\uD800\n"] ["\uDd1ea"] ["\ud800abc"] [0.4e00669999999999999999999999999]
"""


def documents() -> dict[str, list[bytes]]:
    """Texts in three groups: valid JSON, broken JSON, and such as parsers disagree on."""
    return {
        "valid": [
            *(text.encode() for text in _words(_VALID)),
            *(b'"%b"' % text for text in _VALID_BYTES),
            b" [ 1 , 2 ] ",
        ],
        "broken": [*(text.encode() for text in _words(_BROKEN)), *_BROKEN_BYTES],
        "debatable": [*(text.encode() for text in _words(_DEBATABLE)), b"[" * 400 + b"]" * 400],
    }


def _words(text: str) -> list[str]:
    """Split at blanks; a document that is broken only together with what follows it stays out of the broken ones."""
    return [word for word in text.split() if word not in _CLOSES]


_CLOSES = {"]", "}"}
"""On their own they would close what the case around them opened."""

NAUGHTY: list[str] = [
    *("", " ", "undefined", "null", "None", "NaN", "true", "0", "-1", "1e1000", "0x0", "9" * 400, "1/0", "1,000.00"),
    *("\0", "\x01\x02\x03\x1f", "\x7f", "\x80\x85\x9f", "\t\v\f", "\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", "a\nb", "a\rb"),
    *("\u2028", "\u2029", "\u200b\u200c\u200d", "\ufeff", "\u202etext", "\u2066text\u2069", "\ufffe", "\U0001f4a9"),
    *(
        "田中さん",
        "部落格",
        "사회과학원",
        "пример",
        "مرحبا",
        "שלום",
        "नमस्ते",
        "ﷺ",
        "Z̮̞̠͙͔ͅḀ̗̞͈̻̗Ḷ͙͎̯̹̞͓G̻O̭̗̮",
        "👩\u200d👩\u200d👧\u200d👦",
    ),
    *(
        "'",
        '"',
        "''",
        '""',
        "`",
        "\\",
        "\\\\",
        "\\n",
        "\\u0000",
        "%",
        "%s%d%n",
        "%00",
        "{}",
        "{{}}",
        "${7*7}",
        "{0.__class__}",
    ),
    *("' OR 1=1 --", "1;DROP TABLE users", "<script>alert(1)</script>", "<!--#exec cmd-->", "&lt;", "]]>", "<?xml?>"),
    *("../../../../etc/passwd", "C:\\con", "file:///etc/passwd", "$(touch x)", "`ls`", "; ls", "| ls", "--help", "-"),
    *("\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x9b31m", 'lane="x"} 1', 'x"\n# HELP evil', "a" * 5000, "😀" * 1000),
    *(
        "System.exit",
        "__proto__",
        "constructor",
        "hasOwnProperty",
        "[object Object]",
        "scunthorpe",
        "ÅÍÎÏ˝ÓÔÒÚÆ☃",
        "½",
        "①",
    ),
]


def _documents_with(text: str) -> list[dict[str, Any]]:
    return [
        chat(messages=[{"role": "user", "content": text}], user=text),
        chat(model=text),
    ]


STRINGS_OF: Callable[[str], list[dict[str, Any]]] = _documents_with
"""The requests in which a string appears: as prompt and user, and as model."""

for _text in NAUGHTY:
    json.dumps(_text).encode()  # each must itself be possible to send
