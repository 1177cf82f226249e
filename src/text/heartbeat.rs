//! The texts php-fpm sends to its notify socket (P30).
//!
//! A datagram holds `KEY=VALUE` lines. The first one says `READY=1`; later ones carry, in `STATUS`, the counters of all
//! pools of the master together. The text is meant for people, so one that reads differently is a sign of life without
//! counters and never an error.
//! Source: php-src `sapi/fpm/fpm/fpm_systemd.c`; checked with 8.2.36 (`edge::fastcgi` tests).

/// The counters of a master, all its pools together. Active and idle are wrong under keep-alive (P35).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Heartbeat {
    /// Workers in a request.
    pub active: u32,
    /// Workers that wait for one.
    pub idle: u32,
    /// Requests since the master's start.
    pub requests: u64,
    /// Requests that ran into `request_slowlog_timeout`.
    pub slow: u64,
    /// Requests a second over php-fpm's last interval; two digits.
    pub requests_per_second: Option<f64>,
}

/// One datagram.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Notice {
    /// Whether it says that the master is ready.
    pub ready: bool,
    /// The status text.
    pub status: Option<String>,
    /// The counters in the status text.
    pub heartbeat: Option<Heartbeat>,
    /// `MAINPID`.
    pub main_pid: Option<u32>,
}

/// Reads a datagram. Unknown keys and texts are passed over.
pub fn read_notice(datagram: &[u8]) -> Notice {
    let mut notice = Notice::default();
    for line in String::from_utf8_lossy(datagram).lines() {
        let Some((key, value)) = line.split_once('=') else { continue };
        match key {
            "READY" => notice.ready = value.trim() == "1",
            "MAINPID" => notice.main_pid = value.trim().parse().ok(),
            "STATUS" => {
                notice.heartbeat = read_status(value);
                notice.status = Some(value.to_owned());
            }
            _ => {}
        }
    }
    notice
}

/// Reads `Processes active: 0, idle: 2, Requests: 0, slow: 0, Traffic: 0req/sec`; `None` when a counter is not there.
pub fn read_status(text: &str) -> Option<Heartbeat> {
    let (mut active, mut idle, mut requests, mut slow, mut rate) = (None, None, None, None, None);
    for part in text.split(',') {
        let Some((name, value)) = part.rsplit_once(':') else { continue };
        let value = value.trim();
        match name.trim() {
            "Processes active" => active = value.parse().ok(),
            "idle" => idle = value.parse().ok(),
            "Requests" => requests = value.parse().ok(),
            "slow" => slow = value.parse().ok(),
            "Traffic" => rate = value.strip_suffix("req/sec").and_then(|number| number.trim().parse().ok()),
            _ => {}
        }
    }
    let requests_per_second = rate.filter(|rate: &f64| rate.is_finite() && *rate >= 0.0);
    Some(Heartbeat { active: active?, idle: idle?, requests: requests?, slow: slow.unwrap_or(0), requests_per_second })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_notice_says_ready() {
        let notice = read_notice(b"READY=1\nSTATUS=Ready to handle connections\nMAINPID=4711");
        assert!(notice.ready);
        assert_eq!((notice.main_pid, notice.heartbeat), (Some(4711), None));
        assert_eq!(notice.status.as_deref(), Some("Ready to handle connections"));
    }

    #[test]
    fn later_notices_carry_counters() {
        let text = "Processes active: 3, idle: 2, Requests: 18446744073709551615, slow: 1, Traffic: 1.2e+02req/sec";
        let heartbeat = Heartbeat { active: 3, idle: 2, requests: u64::MAX, slow: 1, requests_per_second: Some(120.0) };
        assert_eq!(read_status(text), Some(heartbeat));
        let notice = read_notice(format!("READY=1\nSTATUS={text}").as_bytes());
        assert_eq!(notice.heartbeat, Some(heartbeat));
    }

    #[test]
    fn other_texts_are_signs_of_life_without_counters() {
        for text in ["", "Processes active: -1, idle: 2, Requests: 0", "Processes: 3", "Requests: 5", "active: 1, idle: 1, Requests: 1"] {
            assert_eq!(read_status(text), None, "{text}");
        }
        assert_eq!(read_status("Processes active: 1, idle: 1, Requests: 1, Traffic: nanreq/sec").unwrap().requests_per_second, None);
        assert_eq!(read_notice(b"READY=0\nFDSTORE=1\nno line\n\xff\xfe"), Notice::default());
    }
}
