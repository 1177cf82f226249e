//! Answers of php-fpm: the decoder ends for any bytes, holds no more than allowed, and does not care how they are cut.

#![no_main]

use libfuzzer_sys::fuzz_target;
use polyfpm::text::fastcgi::{Decoder, Response, excerpt};

/// Small, so that the limit is met.
const LIMIT_BYTES: usize = 2000;

fuzz_target!(|data: &[u8]| {
    let Some((cut, bytes)) = data.split_first() else { return };
    let mut whole = Decoder::new(LIMIT_BYTES);
    let at_once = whole.feed(bytes);
    let mut pieces = Decoder::new(LIMIT_BYTES);
    let mut in_pieces = Ok(None);
    for piece in bytes.chunks(usize::from(*cut).max(1)) {
        in_pieces = pieces.feed(piece);
        if !matches!(in_pieces, Ok(None)) {
            break;
        }
    }
    // Which fault is met first may hang on the cut, and nothing else.
    assert_eq!(at_once.as_ref().ok(), in_pieces.as_ref().ok());
    let _what_closing_means = whole.closed().to_string();
    if let Ok(Some(answer)) = at_once {
        assert!(answer.stdout.len() + answer.stderr.len() <= LIMIT_BYTES);

        if let Ok(response) = Response::read(answer) {
            assert!((100..1000).contains(&response.status));
            let _header = response.header("content-type");
        }
    }
    assert!(excerpt(bytes, 60).lines().count() <= 1);
});
