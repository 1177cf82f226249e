//! Programs that steer TCP connections among the sockets of a reuseport group: pure.
//!
//! Classic BPF, run once per new connection. Its answer is an index into the kernel's array of the group's sockets; an
//! answer beyond the array makes the kernel choose by hash among all of them.
//!
//! Sources: socket(7), `SO_ATTACH_REUSEPORT_CBPF`; Linux `Documentation/networking/filter.rst`, "BPF engine and
//! instruction set"; `include/uapi/linux/{filter,bpf_common}.h`.

use std::collections::BTreeMap;

/// The kernel's limit on the length of a program (`BPF_MAXINSNS`).
/// Kernels before 6.6 also want it to fit into `net.core.optmem_max`, 20 KiB by default, so to have no more than about 2,500.
const LIMIT_INSTRUCTIONS: usize = 4096;

/// `BPF_LD | BPF_W | BPF_ABS`: loads the word at a fixed place.
const LOAD: u16 = 0x20;
/// `BPF_JMP | BPF_JGT | BPF_K`: compares with a constant.
const JUMP_IF_GREATER: u16 = 0x25;
/// `BPF_JMP | BPF_JA`: passes over as many instructions as the constant says.
const JUMP: u16 = 0x05;
/// `BPF_ALU | BPF_MOD | BPF_K`: the remainder of a division by a constant.
const REMAINDER: u16 = 0x94;
/// `BPF_RET | BPF_K`: ends with a constant.
const RETURN: u16 = 0x06;
/// `SKF_AD_OFF + SKF_AD_CPU`: the place that stands for the number of the CPU on which the connection arrives.
const CPU: u32 = (-0x1000i32 + 36).cast_unsigned();
/// `SKF_AD_OFF + SKF_AD_RANDOM`: the place that stands for a random number.
const RANDOM: u32 = (-0x1000i32 + 56).cast_unsigned();

/// One instruction, laid out as the kernel's `struct sock_filter`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Instruction {
    pub(super) code: u16,
    pub(super) if_true: u8,
    pub(super) if_false: u8,
    pub(super) constant: u32,
}

/// Gives the program that answers with the index `table` has for the arriving CPU, or with one of `defaults` at random;
/// `None` if it would be longer than the kernel takes, or there is no default.
///
/// Neighbouring CPUs with one index cost one comparison, so the usual layouts give short programs.
pub(super) fn steer(table: &BTreeMap<u32, u32>, defaults: &[u32]) -> Option<Vec<Instruction>> {
    let only = if let [only] = defaults { Some(*only) } else { None };
    let ranges = ranges(table, only);
    let mut program = Vec::new();
    if !ranges.is_empty() {
        program.push(instruction(LOAD, CPU));
    }
    for (at, (last_cpu, target)) in (1..).zip(&ranges) {
        // Beyond the range: past the next instruction. In it: that one.
        program.push(Instruction { if_true: 1, ..instruction(JUMP_IF_GREATER, *last_cpu) });
        let to_defaults = u32::try_from(2 * (ranges.len() - at)).ok()?;
        program.push(target.map_or(instruction(JUMP, to_defaults), answer));
    }
    program.extend(any_of(defaults)?);
    (program.len() <= LIMIT_INSTRUCTIONS).then_some(program)
}

/// Gives the end of a program: one of `indexes` at random.
fn any_of(indexes: &[u32]) -> Option<Vec<Instruction>> {
    let (last, others) = indexes.split_last()?;
    let mut program = Vec::new();
    if !others.is_empty() {
        program.push(instruction(LOAD, RANDOM));
        program.push(instruction(REMAINDER, u32::try_from(indexes.len()).ok()?));
    }
    for (at, index) in (0..).zip(others) {
        program.push(Instruction { if_true: 1, ..instruction(JUMP_IF_GREATER, at) });
        program.push(answer(*index));
    }
    program.push(answer(*last));
    Some(program)
}

fn instruction(code: u16, constant: u32) -> Instruction {
    Instruction { code, if_true: 0, if_false: 0, constant }
}

fn answer(index: u32) -> Instruction {
    instruction(RETURN, index)
}

/// Gives, in ascending order, the last CPU of each range with one index; what follows the last range has a default. Gaps have
/// the `only` default, or `None` where there are several.
fn ranges(table: &BTreeMap<u32, u32>, only: Option<u32>) -> Vec<(u32, Option<u32>)> {
    let mut ranges: Vec<(u32, Option<u32>)> = Vec::new();
    let mut extend = |last_cpu: u32, index: Option<u32>| match ranges.last_mut() {
        Some(range) if range.1 == index => range.0 = last_cpu,
        _ => ranges.push((last_cpu, index)),
    };
    let mut next_cpu = 0;
    for (&cpu, &index) in table {
        if cpu > next_cpu {
            extend(cpu - 1, only);
        }
        extend(cpu, Some(index));
        next_cpu = cpu.saturating_add(1);
    }
    if ranges.last().is_some_and(|range| range.1 == only) {
        ranges.pop();
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Does what the kernel does.
    fn run(program: &[Instruction], cpu: u32, random: u32) -> u32 {
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let instruction = program[at];
            at += 1;
            match instruction.code {
                LOAD if instruction.constant == CPU => accumulator = cpu,
                LOAD => accumulator = random,
                REMAINDER => accumulator %= instruction.constant,
                JUMP => at += usize::try_from(instruction.constant).unwrap(),
                JUMP_IF_GREATER => {
                    at += usize::from(if accumulator > instruction.constant { instruction.if_true } else { instruction.if_false });
                }
                RETURN => return instruction.constant,
                other => panic!("{other}"),
            }
        }
    }

    #[test]
    fn one_target_for_all_is_one_instruction() {
        assert_eq!(steer(&BTreeMap::new(), &[3]).unwrap(), [answer(3)]);
        assert_eq!(steer(&(0..64).map(|cpu| (cpu, 3)).collect(), &[3]).unwrap(), [answer(3)]);
        assert_eq!(steer(&(0..64).map(|cpu| (cpu, u32::from(cpu >= 32))).collect(), &[0]).unwrap().len(), 6);
    }

    #[test]
    fn a_program_beyond_the_kernels_limit_is_not_made() {
        let alternating = |cpus: u32| (0..cpus).map(|cpu| (cpu, cpu % 2)).collect();
        assert_eq!(steer(&alternating(2047), &[9]).unwrap().len(), 4096);
        assert!(steer(&alternating(2048), &[9]).is_none());
    }

    proptest! {
        #[test]
        fn every_cpu_gets_its_index_and_others_a_default(
            table in prop::collection::btree_map(0u32..70, 0u32..4, 0..64),
            defaults in prop::collection::vec(0u32..4, 1..5),
            random: u32,
        ) {
            let program = steer(&table, &defaults).unwrap();
            let default = defaults[usize::try_from(random).unwrap() % defaults.len()];
            for cpu in (0..80).chain([u32::MAX]) {
                prop_assert_eq!(run(&program, cpu, random), table.get(&cpu).copied().unwrap_or(default));
            }
        }
    }
}
