//! php-fpm's status page in JSON (P31).
//!
//! Values are taken only where they can be true: PHP 8.4.1 showed wrong ones, and the counters of workers are wrong under
//! keep-alive (P35). `listen queue` is left out on purpose: it is always 0 for unix sockets (P33).
//! Source: php-src `sapi/fpm/fpm/fpm_status.c`; checked with 8.2.36 (`edge::fastcgi` tests).

use serde::Deserialize;
use serde_json::{Map, Value};

/// More workers than any pool has; a larger number is a wrapped negative one.
const WORKERS_LIMIT: u32 = 1_000_000;
/// A request that has been running for a year is a wrapped clock.
const DURATION_LIMIT_MICROSECONDS: u64 = 365 * 24 * 3600 * 1_000_000;

/// One pool as its status page tells. A value that cannot be true is absent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolStatus {
    /// The pool's name.
    pub pool: String,
    /// Connections accepted since the master's start.
    pub accepted: Option<u64>,
    /// Workers in a request.
    pub active: Option<u32>,
    /// Workers that wait for one.
    pub idle: Option<u32>,
    /// Both.
    pub total: Option<u32>,
    /// How often `pm.max_children` was reached.
    pub max_children_reached: Option<u64>,
    /// Requests that ran into `request_slowlog_timeout`.
    pub slow: Option<u64>,
    /// Seconds since the pool started.
    pub up_seconds: Option<u64>,
    /// Its workers, when they were asked for; those that are still being started are left out.
    pub workers: Option<Vec<WorkerStatus>>,
}

/// One worker of a full status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerStatus {
    /// Its pid.
    pub pid: u32,
    /// What it is at: `Idle`, `Running`, `Reading headers`, …
    pub state: String,
    /// Requests it has served.
    pub requests: Option<u64>,
    /// For how long its request has been running, or ran, in microseconds.
    pub request_microseconds: Option<u64>,
    /// The request's method.
    pub method: String,
    /// The request's URI.
    pub uri: String,
    /// The script.
    pub script: String,
}

impl WorkerStatus {
    /// Tells whether the worker is in a request.
    pub fn in_request(&self) -> bool {
        self.state != "Idle"
    }
}

impl PoolStatus {
    /// Gives how many workers are in a request: counted one by one where the workers are known, else the pool's counter.
    pub fn in_requests(&self) -> Option<u32> {
        match &self.workers {
            Some(workers) => u32::try_from(workers.iter().filter(|worker| worker.in_request()).count()).ok(),
            None => self.active,
        }
    }
}

/// Says why a body is no status page.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// It is not JSON, or not an object.
    #[error("read status page as JSON")]
    Json(#[source] serde_json::Error),
    /// It is an object that names no pool.
    #[error("status page names no pool")]
    NoPool,
}

/// Reads the body of a status page asked with `?json`, or `?json&full`.
///
/// # Errors
/// When the body is not such a page. Single values that cannot be true are no error.
pub fn read_status_page(body: &[u8]) -> Result<PoolStatus, StatusError> {
    // A full page carries URIs, which can be any bytes.
    let text = String::from_utf8_lossy(body);
    let page: Map<String, Value> = serde_json::from_str(&text).map_err(StatusError::Json)?;
    let pool = page.get("pool").and_then(Value::as_str).ok_or(StatusError::NoPool)?.to_owned();
    let workers = page.get("processes").and_then(Value::as_array).map(|list| list.iter().filter_map(read_worker).collect());
    let (active, idle, total) = read_counts(&page);
    Ok(PoolStatus {
        pool,
        accepted: number(&page, "accepted conn"),
        active,
        idle,
        total,
        max_children_reached: number(&page, "max children reached"),
        slow: number(&page, "slow requests"),
        up_seconds: number(&page, "start since"),
        workers,
    })
}

fn number(page: &Map<String, Value>, key: &str) -> Option<u64> {
    page.get(key).and_then(Value::as_u64).filter(|value| i64::try_from(*value).is_ok())
}

/// The three numbers are one statement: if one cannot be true, none is taken. php-fpm makes the total from the other two.
fn read_counts(page: &Map<String, Value>) -> (Option<u32>, Option<u32>, Option<u32>) {
    let count = |key| number(page, key).and_then(|value| u32::try_from(value).ok()).filter(|count| *count <= WORKERS_LIMIT);
    match (count("active processes"), count("idle processes"), count("total processes")) {
        (Some(active), Some(idle), Some(total)) if active + idle == total => (Some(active), Some(idle), Some(total)),
        _ => (None, None, None),
    }
}

#[derive(Deserialize)]
struct WorkerPage {
    pid: u32,
    #[serde(default)]
    state: String,
    #[serde(default)]
    requests: Value,
    #[serde(default, rename = "request duration")]
    duration: Value,
    #[serde(default, rename = "request method")]
    method: Value,
    #[serde(default, rename = "request uri")]
    uri: Value,
    #[serde(default)]
    script: Value,
}

fn read_worker(value: &Value) -> Option<WorkerStatus> {
    let page = WorkerPage::deserialize(value).ok()?;
    // A worker that was forked this moment has pid 0 or a state that is no state yet, seen with 8.2.36.
    if page.pid == 0 || page.state.is_empty() || page.state == "(null)" {
        return None;
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Some(WorkerStatus {
        pid: page.pid,
        state: page.state,
        requests: page.requests.as_u64(),
        request_microseconds: page.duration.as_u64().filter(|duration| *duration <= DURATION_LIMIT_MICROSECONDS),
        method: text(&page.method),
        uri: text(&page.uri),
        script: text(&page.script),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(active: i64, idle: i64, total: i64) -> String {
        format!(
            r#"{{"pool":"www","process manager":"static","start time":1,"start since":7,"accepted conn":12,"listen queue":0,
            "idle processes":{idle},"active processes":{active},"total processes":{total},"max children reached":0,"slow requests":3}}"#
        )
    }

    #[test]
    fn a_page_is_read() {
        let status = read_status_page(page(1, 2, 3).as_bytes()).unwrap();
        assert_eq!(status.pool, "www");
        assert_eq!((status.active, status.idle, status.total, status.in_requests()), (Some(1), Some(2), Some(3), Some(1)));
        assert_eq!((status.accepted, status.slow, status.up_seconds), (Some(12), Some(3), Some(7)));
        assert_eq!(status.workers, None);
    }

    #[test]
    fn numbers_that_cannot_be_true_are_absent() {
        for (active, idle, total) in [(-1, 3, 2), (4_294_967_295, 1, 4_294_967_296), (1, 1, 3), (0, -1, 0)] {
            let status = read_status_page(page(active, idle, total).as_bytes()).unwrap();
            assert_eq!((status.active, status.idle, status.total), (None, None, None), "{active} {idle} {total}");
            assert_eq!(status.accepted, Some(12));
        }
    }

    #[test]
    fn workers_are_counted_one_by_one() {
        let body = br#"{"pool":"www","active processes":0,"idle processes":2,"total processes":2,"processes":[
            {"pid":10,"state":"Running","requests":3,"request duration":18446744073709551000,"request method":"GET","request uri":"/a\u00e4","script":"/x.php"},
            {"pid":11,"state":"Idle","requests":1,"request duration":95,"request method":"-","request uri":"-","script":"-"},
            {"pid":0,"state":"(null)"},{"pid":12,"state":"(null)"},{"state":"Idle"}]}"#;
        let status = read_status_page(body).unwrap();
        assert_eq!(status.in_requests(), Some(1), "whatever the counter says (P35)");
        let workers = status.workers.unwrap();
        assert_eq!(workers.len(), 2);
        assert_eq!((workers[0].request_microseconds, workers[1].request_microseconds), (None, Some(95)));
    }

    #[test]
    fn what_is_no_page_is_refused() {
        for body in ["", "[]", "<html>", "{\"pool\":1}", "{}"] {
            assert!(read_status_page(body.as_bytes()).is_err(), "{body}");
        }
        assert!(read_status_page(b"{\"pool\":\"\xff\"}").is_ok());
    }
}
