//! Durations and sizes as people write them: `500ms`, `1m30s`; `64M`, `2G`.
//!
//! Both readers refuse what two readers would understand differently. A bare number has no duration: php-fpm would take
//! seconds, NGINX milliseconds in places. `M` is minutes to one person and months to the duration library, so only the
//! units of `DURATION_UNITS` are taken. Sizes are powers of 1024 as in php.ini and systemd; `MB` is refused because half of
//! its writers mean a power of 1000, and `MiB` because one way to write a size is enough.

use std::time::Duration;

/// The units a duration may use.
const DURATION_UNITS: [&str; 7] = ["ns", "us", "ms", "s", "m", "h", "d"];

/// The units a duration is written in, the largest first, each in nanoseconds.
const WRITTEN_UNITS: [(&str, u128); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// The suffixes of a size, the largest first, with their powers of two.
const SIZE_UNITS: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

/// Says why a text is no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// A number alone.
    #[error("'{text}' has no unit")]
    NoUnit {
        /// The text as given.
        text: String,
    },
    /// A unit that is not taken.
    #[error("'{text}' has the unit '{unit}', which is not one of ns, us, ms, s, m, h, d")]
    Unit {
        /// The text as given.
        text: String,
        /// The unit as given.
        unit: String,
    },
    /// Anything else.
    #[error("'{text}' is no duration")]
    Other {
        /// The text as given.
        text: String,
    },
}

impl DurationError {
    /// Gives what to write instead, an imperative.
    pub fn remedy(&self) -> String {
        match self {
            Self::NoUnit { text } => {
                let number = text.trim();
                format!("write the unit: \"{number}s\" for seconds, \"{number}ms\" for milliseconds, \"{number}m\" for minutes")
            }
            Self::Unit { .. } | Self::Other { .. } => "write a number with a unit, such as \"500ms\", \"10s\", \"5m\" or \"1h\"".to_owned(),
        }
    }
}

/// Reads a duration such as `500ms`, `10s`, `1m30s`.
///
/// # Errors
/// When there is no unit, an unknown one, or the text is no duration at all.
pub fn duration(text: &str) -> Result<Duration, DurationError> {
    let given = || text.to_owned();
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(DurationError::Other { text: given() });
    }
    if trimmed.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return Err(DurationError::NoUnit { text: given() });
    }
    let units = trimmed.split(|c: char| !c.is_alphabetic()).filter(|unit| !unit.is_empty());
    let unknown = units.into_iter().find(|unit| !DURATION_UNITS.contains(unit));
    match (humantime::parse_duration(trimmed), unknown) {
        (Ok(duration), None) => Ok(duration),
        // A word without any number is no unit mistake.
        (_, Some(unit)) if trimmed.starts_with(|c: char| c.is_ascii_digit()) => {
            Err(DurationError::Unit { text: given(), unit: unit.to_owned() })
        }
        (Ok(_) | Err(_), Some(_)) | (Err(_), None) => Err(DurationError::Other { text: given() }),
    }
}

/// Writes a duration in the form [`duration`] reads, the largest unit first: `1m30s`.
pub fn show_duration(duration: Duration) -> String {
    let mut rest = duration.as_nanos();
    let mut shown = String::new();
    for (unit, nanos) in WRITTEN_UNITS {
        let count = rest / nanos;
        rest %= nanos;
        if count > 0 {
            shown.push_str(&count.to_string());
            shown.push_str(unit);
        }
    }
    if shown.is_empty() { "0s".to_owned() } else { shown }
}

/// Says why a text is no size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// `MB`, which people read in two ways, or `MiB`.
    #[error("'{text}' does not end in K, M, G or T alone")]
    Suffix {
        /// The text as given.
        text: String,
        /// What to write instead, when it is meant as a power of 1024.
        instead: String,
    },
    /// More than fits.
    #[error("'{text}' is too big")]
    TooBig {
        /// The text as given.
        text: String,
    },
    /// Anything else.
    #[error("'{text}' is no size")]
    Other {
        /// The text as given.
        text: String,
    },
}

impl SizeError {
    /// Gives what to write instead, an imperative.
    pub fn remedy(&self) -> String {
        match self {
            Self::Suffix { instead, .. } => format!("write \"{instead}\"; K, M, G and T are powers of 1024"),
            Self::TooBig { .. } | Self::Other { .. } => {
                "write a whole number of bytes, or one with K, M, G or T, such as \"64M\"".to_owned()
            }
        }
    }
}

/// Reads a size such as `64M`; a number alone is bytes.
///
/// # Errors
/// When the unit is unknown or ambiguous, or the number is no whole number that fits.
pub fn size_bytes(text: &str) -> Result<u64, SizeError> {
    let trimmed = text.trim();
    let digits = trimmed.trim_end_matches(|c: char| c.is_alphabetic());
    let unit = trimmed.strip_prefix(digits).unwrap_or_default();
    let digits = digits.trim_end();
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(SizeError::Other { text: text.to_owned() });
    }
    let shift = size_shift(text, digits, unit)?;
    let number: u64 = digits.parse().map_err(|_| SizeError::TooBig { text: text.to_owned() })?;
    number.checked_mul(1 << shift).ok_or_else(|| SizeError::TooBig { text: text.to_owned() })
}

fn size_shift(text: &str, digits: &str, unit: &str) -> Result<u32, SizeError> {
    let mut letters = unit.chars();
    let Some(first) = letters.next() else { return Ok(0) };
    let known = SIZE_UNITS.into_iter().find(|(letter, _)| letter.eq_ignore_ascii_case(&first));
    let Some((letter, shift)) = known else { return Err(SizeError::Other { text: text.to_owned() }) };
    match letters.as_str().to_ascii_lowercase().as_str() {
        "" => Ok(shift),
        "b" | "ib" => Err(SizeError::Suffix { text: text.to_owned(), instead: format!("{digits}{letter}") }),
        _ => Err(SizeError::Other { text: text.to_owned() }),
    }
}

/// Writes a size in the form [`size_bytes`] reads, with the largest unit that leaves a whole number.
pub fn show_size(bytes: u64) -> String {
    let fitting = SIZE_UNITS.into_iter().find(|(_, shift)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    fitting.map_or_else(|| bytes.to_string(), |(letter, shift)| format!("{}{letter}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_read() {
        for (text, ms) in
            [("500ms", 500), ("10s", 10_000), ("5m", 300_000), ("1m30s", 90_000), ("1h 5m", 3_900_000), ("1.5s", 1500), ("0s", 0)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn refused_durations_say_why_and_what_to_write() {
        let told = |text: &str| {
            let error = duration(text).unwrap_err();
            format!("{error}; {}", error.remedy())
        };
        insta::assert_snapshot!(told("30"), @r#"'30' has no unit; write the unit: "30s" for seconds, "30ms" for milliseconds, "30m" for minutes"#);
        insta::assert_snapshot!(told("5M"), @r#"'5M' has the unit 'M', which is not one of ns, us, ms, s, m, h, d; write a number with a unit, such as "500ms", "10s", "5m" or "1h""#);
        insta::assert_snapshot!(told("soon"), @r#"'soon' is no duration; write a number with a unit, such as "500ms", "10s", "5m" or "1h""#);
        for text in ["", " ", "0", "-3s", "1,5s", "s", "5 minutes", "99999999999999999999s", "1month"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [("0", 0), ("64M", 64 << 20), ("2G", 2 << 30), ("16k", 16 << 10), ("1 T", 1 << 40), ("1234", 1234)] {
            assert_eq!(size_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn refused_sizes_say_why_and_what_to_write() {
        let told = |text: &str| {
            let error = size_bytes(text).unwrap_err();
            format!("{error}; {}", error.remedy())
        };
        insta::assert_snapshot!(told("64MB"), @r#"'64MB' does not end in K, M, G or T alone; write "64M"; K, M, G and T are powers of 1024"#);
        insta::assert_snapshot!(told("64MiB"), @r#"'64MiB' does not end in K, M, G or T alone; write "64M"; K, M, G and T are powers of 1024"#);
        insta::assert_snapshot!(told("lots"), @r#"'lots' is no size; write a whole number of bytes, or one with K, M, G or T, such as "64M""#);
        insta::assert_snapshot!(told("99999999T"), @r#"'99999999T' is too big; write a whole number of bytes, or one with K, M, G or T, such as "64M""#);
        for text in ["", "M", "1.5G", "-1", "64 M B", "64X", "5B"] {
            assert!(size_bytes(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_duration_reads_back_as_it_is_written(seconds in 0..u64::from(u32::MAX), nanos in 0..1_000_000_000u32) {
            let span = Duration::new(seconds, nanos);
            prop_assert_eq!(duration(&show_duration(span)), Ok(span));
        }

        #[test]
        fn a_size_reads_back_as_it_is_written(bytes: u64) {
            prop_assert_eq!(size_bytes(&show_size(bytes)), Ok(bytes));
        }

        #[test]
        fn no_text_makes_a_reader_fall_over(text in ".{0,24}") {
            let _ignored = duration(&text);
            let _ignored = size_bytes(&text);
        }
    }
}
