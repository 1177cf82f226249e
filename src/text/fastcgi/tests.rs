use proptest::prelude::*;

use super::*;

fn record(version: u8, kind: u8, id: u16, content: &[u8], padding: u8) -> Vec<u8> {
    let mut bytes = vec![version, kind];
    bytes.extend(id.to_be_bytes());
    bytes.extend(u16::try_from(content.len()).unwrap().to_be_bytes());
    bytes.extend([padding, 0]);
    bytes.extend(content);
    bytes.extend(vec![0xaa; padding.into()]);
    bytes
}

fn end(protocol_status: u8) -> Vec<u8> {
    record(1, END_REQUEST, 1, &[0, 0, 0, 0, protocol_status, 0, 0, 0], 0)
}

fn decode(bytes: &[u8]) -> Result<Option<Answer>, DecodeError> {
    Decoder::new(1 << 20).feed(bytes)
}

#[test]
fn a_request_is_begin_params_and_stdin_each_stream_closed() {
    let bytes = encode_request(&Params::new().with("A", "bc"), b"xy");
    let mut expected = record(1, BEGIN_REQUEST, 1, &[0, 1, 0, 0, 0, 0, 0, 0], 0);
    expected.extend(record(1, PARAMS, 1, &[1, 2, b'A', b'b', b'c'], 0));
    expected.extend(record(1, PARAMS, 1, &[], 0));
    expected.extend(record(1, STDIN, 1, b"xy", 0));
    expected.extend(record(1, STDIN, 1, &[], 0));
    assert_eq!(bytes, expected);
}

#[test]
fn lengths_from_128_take_four_bytes() {
    let bytes = Params::new().with("N", vec![b'v'; 127]).with("N", vec![b'v'; 128]).encode();
    assert_eq!(bytes[..3], [1, 127, b'N']);
    assert_eq!(bytes[130..136], [1, 0x80, 0, 0, 128, b'N']);
}

#[test]
fn long_streams_are_cut_into_records() {
    let body = vec![7; CHUNK_BYTES + 1];
    let bytes = encode_request(&Params::new(), &body);
    // Begin; the end of the parameters; two records and the end of the body.
    assert_eq!(bytes.len(), 16 + 8 + body.len() + 3 * 8);
}

#[test]
fn an_answer_is_both_streams_without_padding() {
    let mut bytes = record(1, STDOUT, 1, b"X: y\r\n\r\nbo", 3);
    bytes.extend(record(1, STDERR, 1, b"warned", 2));
    bytes.extend(record(1, STDOUT, 1, b"dy", 0));
    bytes.extend(record(1, STDOUT, 1, b"", 0));
    bytes.extend(end(0));
    bytes.extend(b"whatever follows");
    let answer = decode(&bytes).unwrap().unwrap();
    assert_eq!(answer, Answer { stdout: b"X: y\r\n\r\nbody".to_vec(), stderr: b"warned".to_vec() });
}

#[test]
fn broken_answers_are_told_apart() {
    let cases = [
        (b"HTTP/1.1 400".to_vec(), DecodeError::Version(b'H')),
        (record(9, STDOUT, 1, b"x", 0), DecodeError::Version(9)),
        (record(1, STDOUT, 2, b"x", 0), DecodeError::RequestId(2)),
        (record(1, STDOUT, 0, b"x", 0), DecodeError::RequestId(0)),
        (record(1, 10, 1, b"x", 0), DecodeError::Kind(10)),
        (record(1, END_REQUEST, 1, &[0, 0, 0, 0], 0), DecodeError::EndLength(4)),
        (end(2), DecodeError::Refused(2)),
    ];
    for (bytes, error) in cases {
        assert_eq!(decode(&bytes), Err(error), "{bytes:?}");
    }
    let mut decoder = Decoder::new(100);
    assert_eq!(decoder.feed(&record(1, STDOUT, 1, b"abc", 0)), Ok(None));
    assert_eq!(decoder.closed(), DecodeError::Truncated { received_bytes: 11 });
}

#[test]
fn an_answer_that_is_too_long_ends_at_the_limit() {
    let mut decoder = Decoder::new(1000);
    let chunk = record(1, STDERR, 1, &[b'e'; 100], 0);
    let fed = (0..100).find(|_| decoder.feed(&chunk).is_err());
    assert_eq!(fed, Some(9), "108 bytes each");
}

#[test]
fn an_answer_is_too_long_however_it_is_cut() {
    let answer = [record(1, STDOUT, 1, b"X: y\r\n\r\nbody", 0), end(0)].concat();
    let whole = |limit_bytes| Decoder::new(limit_bytes).feed(&answer);
    assert!(whole(answer.len()).unwrap().is_some());
    assert_eq!(whole(answer.len() - 1), Err(DecodeError::TooLong { limit_bytes: answer.len() - 1 }));
}

#[test]
fn a_response_has_status_headers_and_body() {
    let read = |stdout: &[u8]| Response::read(Answer { stdout: stdout.to_vec(), stderr: Vec::new() });
    let response = read(b"Status: 404 Not Found\r\nContent-Type: text/plain\r\n\r\nFile not found.\n\nx").unwrap();
    assert_eq!((response.status, response.header("content-type")), (404, Some("text/plain")));
    assert_eq!(response.body, b"File not found.\n\nx");
    assert_eq!(read(b"A: b\n\nc").unwrap().body, b"c");
    assert_eq!(read(b"\r\nc").unwrap().status, 200);
    assert_eq!(read(b"A: b\r\n"), Err(DecodeError::NoHeader));
    assert_eq!(read(b"Status: no\r\n\r\n"), Err(DecodeError::Status("no".to_owned())));
    assert_eq!(read(b"Status: 99999999\r\n\r\n"), Err(DecodeError::Status("99999999".to_owned())));
}

#[test]
fn excerpts_are_one_bounded_line() {
    assert_eq!(excerpt(b"  a\nb\x1b[0m ", 10), "a b [0m");
    assert_eq!(excerpt("ä".repeat(50).as_bytes(), 3), "äää…");
    assert_eq!(excerpt(&[0xff; 9], 100), "\u{fffd}".repeat(9));
}

#[test]
fn errors_are_lowercase_fragments() {
    for error in [DecodeError::Version(9), DecodeError::Refused(2), DecodeError::TooLong { limit_bytes: 3 }, DecodeError::NoHeader] {
        let text = error.to_string();
        assert!(text.starts_with(char::is_lowercase) && !text.ends_with('.'), "{text}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_taken_without_a_panic_and_within_bounds(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..40)) {
        let mut decoder = Decoder::new(2000);
        for chunk in chunks {
            if decoder.feed(&chunk).is_err() {
                break;
            }
            prop_assert!(decoder.pending.len() + decoder.answer.stdout.len() + decoder.answer.stderr.len() <= 2000);
        }
    }

    #[test]
    fn where_the_bytes_are_cut_makes_no_difference(
        stdout in prop::collection::vec(any::<u8>(), 0..500), size in 1_usize..200, cut in 1_usize..50, padding in any::<u8>()
    ) {
        let mut bytes: Vec<u8> = stdout.chunks(size).flat_map(|chunk| record(1, STDOUT, 1, chunk, padding)).collect();
        bytes.extend(end(0));
        let mut decoder = Decoder::new(1 << 20);
        let mut got = None;
        for chunk in bytes.chunks(cut) {
            prop_assert!(got.is_none());
            got = decoder.feed(chunk).unwrap();
        }
        prop_assert_eq!(got.unwrap().stdout, stdout);
    }
}
