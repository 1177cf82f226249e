//! On which CPUs NGINX's workers run, as its configuration says.
//!
//! Source: nginx `core/nginx.c` (`ngx_set_cpu_affinity`, `ngx_get_cpu_affinity`), `os/unix/ngx_process_cycle.c`.

use super::read::Layout;
use crate::model::cpus::CpuSet;

/// The longest mask NGINX takes.
const MASK_DIGITS: usize = 1024;

impl Layout {
    /// Gives how many workers there are on a machine with `online` CPUs: `auto` counts those, whatever NGINX may use of them.
    pub fn worker_count(&self, online: usize) -> usize {
        match self.worker_processes.as_deref() {
            None => 1,
            Some("auto") => online,
            Some(number) => number.parse().unwrap_or(1),
        }
    }

    /// Gives the CPUs of each worker; `None` for one that may run where it was born: no mask, or a mask without a CPU that is there.
    pub fn worker_cpus(&self, online: &CpuSet) -> Vec<Option<CpuSet>> {
        let count = self.worker_count(online.len());
        let there = |set: CpuSet| Some(set.iter().filter(|cpu| online.contains(*cpu)).collect::<CpuSet>()).filter(|set| !set.is_empty());
        match self.worker_cpu_affinity.as_slice() {
            [] => vec![None; count],
            [auto, masks @ ..] if auto == "auto" => {
                // Without a mask NGINX takes the first CPUs by number, as many as are online, be there holes or not.
                let bits: Vec<u32> = match masks.first() {
                    Some(text) => mask(text).iter().collect(),
                    None => (0..u32::try_from(online.len()).unwrap_or(u32::MAX)).collect(),
                };
                bits.iter()
                    .cycle()
                    .take(count)
                    .map(|cpu| there([*cpu].into_iter().collect()))
                    .chain(std::iter::repeat(None))
                    .take(count)
                    .collect()
            }
            masks => {
                let last = masks.last().map(|text| mask(text)).unwrap_or_default();
                let sets = masks.iter().map(|text| mask(text)).chain(std::iter::repeat(last));
                sets.take(count).map(there).collect()
            }
        }
    }
}

/// Reads a mask: its last digit is CPU 0, blanks mean nothing. One that NGINX would refuse names no CPU.
fn mask(text: &str) -> CpuSet {
    let digits: Vec<char> = text.chars().rev().filter(|letter| *letter != ' ').collect();
    if digits.len() > MASK_DIGITS || digits.iter().any(|digit| !matches!(digit, '0' | '1')) {
        return CpuSet::default();
    }
    (0..).zip(digits).filter(|(_, digit)| *digit == '1').map(|(cpu, _)| cpu).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(processes: &str, affinity: &[&str], online: &str) -> String {
        let layout = Layout {
            worker_processes: (!processes.is_empty()).then(|| processes.to_owned()),
            worker_cpu_affinity: affinity.iter().map(|word| (*word).to_owned()).collect(),
            ..Layout::default()
        };
        let sets = layout.worker_cpus(&online.parse().unwrap());
        sets.iter().map(|set| set.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string)).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_form_of_worker_cpu_affinity() {
        for (processes, affinity, online, wanted) in [
            ("", &[][..], "0-3", "-"),
            ("auto", &[], "0-3", "- - - -"),
            ("4", &["0001", "0010", "0100", "1000"], "0-3", "0 1 2 3"),
            ("4", &["01", "10"], "0-3", "0 1 1 1"),
            ("1", &["01", "10"], "0-3", "0"),
            ("2", &["0101", "1010"], "0-3", "0,2 1,3"),
            ("2", &["0011 0000", "1100 0000"], "0-7", "4-5 6-7"),
            ("auto", &["auto"], "0-3", "0 1 2 3"),
            ("6", &["auto"], "0-3", "0 1 2 3 0 1"),
            ("4", &["auto", "1010"], "0-3", "1 3 1 3"),
            ("2", &["auto", "0000"], "0-3", "- -"),
            ("2", &["0000", "01"], "0-3", "- 0"),
            ("2", &["10000", "01"], "0-3", "- 0"),
            // Three CPUs are online, so `auto` means 0, 1 and 2, of which 1 is not there.
            ("auto", &["auto"], "0,2-3", "0 - 2"),
            ("2", &["bad", "01"], "0-1", "- 0"),
            ("0", &["auto"], "0-1", ""),
        ] {
            assert_eq!(shown(processes, affinity, online), wanted, "{processes} {affinity:?} {online}");
        }
    }

    #[test]
    fn masks_reach_beyond_64_cpus() {
        let high = format!("1{}", "0".repeat(200));
        assert_eq!(shown("1", &[&high], "0-255"), "200");
        assert_eq!(shown("1", &[&"1".repeat(1025)], "0-1"), "-");
    }
}
