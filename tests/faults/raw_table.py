"""The framing cases: number, name and meaning, by class. The bytes are in `raw_recipes`, the classes in `raw`."""

_TEXT = """
accept1
    000 control-cl: a plain POST with a length
    001 control-chunked: a plain POST in two chunks
    030 cl-leading-zero: leading zeros are digits like others
    031 cl-ows: white space around a field value is legal
    0408 te-tab: a tab before the coding is legal white space
    0410 te-case: field names and coding names have no case
    0420 te-underscore-cl: a name with an underscore is not Transfer-Encoding, here or at the engine
    050 chunk-ext: a chunk extension is legal and goes no further
    063 chunk-leading-zeros: leading zeros in a chunk size are legal
    064 trailer-plain: a trailer is legal and never becomes a header
    068 chunk-1byte-x5000: 5000 chunks of one byte are one body
    071 absolute-form: must be accepted; the engine is the configured one
    103 leading-crlf: one empty line before a request is skipped
    116 no-host-http10: HTTP/1.0 needs no Host
    140 conn-content-length: Connection cannot take the framing away
    141 conn-authorization: Connection must not turn a request with a key into an anonymous one
    142 conn-x-custom: what Connection names stays here
    143 hop-by-hop: fields of this hop stay here
    144 upgrade-h2c: no upgrade passes to the engine, and the body does
    150 expect-100: a body sent at once with Expect
    160 xff-spoof: nobody says for himself where he comes from
    161 range: Range means nothing on a POST
    175 ce-identity: no coding at all, said in words
accept1_get
    002 control-get-models: a plain GET
    193 get-with-body: the body of a GET is read and is no second request
reject405
    194 head: HEAD is no method of any path here, nor is it in vLLM, which answers 405 as well; no body in the answer
reject4xx+close
    010 cl-te: length and chunks together
    011 te-cl: chunks and a length together
    013 dup-cl-diff: two lengths
    015 cl-list-diff: two lengths in one field
    020 cl-plus: a length with a sign
    021 cl-minus: a negative length
    022 cl-hex: a length in hex
    023 cl-underscore: a length as Python would read it
    024 cl-huge: a length beyond 64 bit
    025 cl-empty: an empty length
    026 cl-spaced: a length with a blank inside
    027 cl-arabic-digits: a length in digits that are not ASCII
    028 cl-float: a length with a fraction
    029 cl-trailing-junk: a length with letters behind it
    032 cl-space-colon: a blank before the colon
    0400 te-dup-chunked-identity: two codings that contradict each other
    0402 te-chunked-identity: chunked is not the last coding
    0403 te-chunked-twice: chunked twice
    0404 te-dup-chunked: chunked in two fields
    0405 te-xchunked: an unknown coding
    0406 te-vtab: a vertical tab before the coding
    0407 te-space-colon: a blank before the colon
    0409 te-obsfold: the coding on a folded line
    0411 te-quoted: the coding in quotes
    0412 te-param: the coding with a parameter
    0414 te-nul: a NUL before the coding
    0416 te-cr-smuggle: a coding behind a bare CR
    0417 te-bare-lf-smuggle: a coding behind a bare LF
    0421 te-http10: a coding in HTTP/1.0
    0422 te-identity-nocl: a coding that says nothing about the length
    051 chunk-ext-lf: a bare LF in a chunk extension
    053 chunk-size-plus: a chunk size with a sign
    054 chunk-size-0x: a chunk size with 0x
    055 chunk-size-underscore: a chunk size as Python would read it
    056 chunk-size-overflow: a chunk size beyond 64 bit
    057 chunk-size-neg: a negative chunk size
    058 chunk-size-empty: an empty chunk size
    059 chunk-size-lf: a bare LF after the chunk size
    060 chunk-data-lf: a bare LF after the chunk
    061 chunk-data-overlong: a chunk longer than its size
    052 chunk-ext-64k: chunks that are mostly extensions (RFC 9112, 7.1.1: limit them and answer 4xx)
    070 lf-only: bare LF everywhere
    073 connect: no tunnel
    075 http09: a request line without version
    076 http20-line: HTTP/2.0 written in a request line
    078 http-lower: the protocol in lower case
    079 h2-preface: HTTP/2 without a negotiation
    081 tab-sep: a tab in the request line
    087 path-raw-space: a blank in the path
    100 method-lower: another method than POST
    101 method-unknown: no method of ours
    102 method-bad-char: a control character in the method
    104 leading-space: a blank before the method
    105 trace: TRACE would echo credentials
    110 no-host: HTTP/1.1 without Host
    111 dup-host-same: Host twice
    112 dup-host-diff: two Hosts
    115 host-path: a path in Host
    120 name-space: a blank in a field name
    121 name-empty: no field name
    122 name-nul: NUL in a field name
    123 name-latin1: a byte that no field name has
    124 value-nul: NUL in a value
    125 value-cr: a bare CR in a value
    128 first-header-fold: a folded line that folds nothing
    129 colonless: a line that is no field
    197 tls-hello: TLS on a plain port
accept1_or_reject
    012 dup-cl-same: the same length twice becomes one, or none is believed
    014 cl-list-same: the same length twice in one field
    0401 te-identity-chunked: a coding list that ends in chunked
    0413 te-gzip-chunked: a compressed body in chunks
    0415 te-empty-list: an empty item before chunked
    062 chunk-size-spaces: blanks after a chunk size
    065 trailer-framing: framing and credentials in a trailer never count
    066 trailer-1000: a thousand trailers
    067 trailer-smuggle: a request line in the place of a trailer
    072 absolute-form-other-host: nobody says where we connect
    074 options-star: a request for no path
    077 http12: a later minor version
    080 double-space: RFC 9112 section 3 lets white space be split leniently; our own line is what the engine reads
    084 path-nul: NUL in the path, encoded
    085 path-crlf-enc: CR and LF in the path stay encoded
    086 path-raw-utf8: a path in UTF-8
    113 host-userinfo: credentials in Host
    114 host-empty: an empty Host
    126 value-obs-text: bytes beyond ASCII pass whole, or not at all
    127 obs-fold: a folded value is refused or unfolded
    134 value-esc: a terminal escape never reaches the log
    152 expect-unknown: an expectation that nobody knows
    170 ce-gzip: a compressed body is inflated, or refused as such
    180 dup-ctype: proxy and engine read the same Content-Type
    181 no-ctype: a body without a type
    182 dup-auth: one key, not two
    199 post-no-length: a POST without a body
refuse
    145 upgrade-websocket: no half-open tunnel
reject413_or_415
    171 ce-gzip-bomb: 200 MB in 200 kB cost no memory
reject414
    082 uri-9000: a request line of 9 kB
    083 uri-70000: a request line of 70 kB
reject415
    174 ce-corrupt: a compressed body with a wrong checksum; no compressed body is accepted, so it is not looked at
    173 ce-bogus: a coding that nobody knows
reject415_or_decode
    172 ce-double: compressed twice
reject431
    131 header-70k: a field of 70 kB
    133 headers-5000: 5000 fields
reject431_or_accept
    130 header-9k: a field of 9 kB
    132 headers-150: 150 fields
accept2
    190 pipeline-2: two requests at once, two answers in order
accept2_apart
    191 pipeline-smuggle-tail: what follows a body is a request of its own
accept1+400
    192 garbage-after: the good request is served before the bad one is refused
accept-all-bounded
    198 pipeline-300: 300 requests at once, with bounded memory
100-or-final
    151 expect-100-wait: who waits for a word gets one at once
no-upstream-complete
    069 chunk-truncated-close: half a chunk is no request
    195 body-short-close: half a body is no request
no-upstream
    196 headers-truncated: half a head is no request
allowlist
    0900 path-dslash: an empty segment
    0901 path-dotdot: up one level
    0902 path-dotdot-enc: up one level, encoded
    0903 path-dotdot-semi: up one level, with a parameter
    0904 path-slash-enc: an encoded slash
    0905 path-dot: a segment that means nothing
    0906 path-backslash: up one level, with backslashes
    0907 path-double-enc: up one level, encoded twice
    0908 path-admin-enc: an admin path, encoded
    0909 path-trailing-slash: a slash too many
    0910 path-case: another case
    0911 path-fragment: a fragment
"""


def _table() -> dict[str, tuple[str, str, str]]:
    found: dict[str, tuple[str, str, str]] = {}
    kind = ""
    for line in _TEXT.strip().splitlines():
        if not line.startswith(" "):
            kind = line
            continue
        title, _, words = line.strip().partition(": ")
        number, _, name = title.partition(" ")
        found[number] = (kind, name, words)
    return dict(sorted(found.items()))


TABLE = _table()
"""Number → (class, name, meaning)."""
