//! Lines of the control socket, both ways.

#![no_main]

use libfuzzer_sys::fuzz_target;
use polyfpm::edge::control::server::{fuzzing::request, permits};
use polyfpm::model::wire::{Reply, Request, VERSION};

fuzz_target!(|data: &[u8]| {
    match request(data) {
        Ok(command) => {
            assert!(permits(0, 0, &command));
            let line = serde_json(&Request { v: VERSION, command: command.clone() });
            assert_eq!(request(&line).expect("what we would ask ourselves"), command);
        }
        Err(refusal) => assert!(!serde_json(&refusal).contains(&b'\n'), "one line"),
    }
    if let Ok(reply) = polyfpm::edge::control::server::fuzzing::reply(data) {
        let line = serde_json(&reply);
        let _again: Reply = polyfpm::edge::control::server::fuzzing::reply(&line).expect("what we would answer ourselves");
    }
});

fn serde_json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain values")
}
