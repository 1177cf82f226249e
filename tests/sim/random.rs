//! The dice of the simulation: the same seed throws the same, on every machine.

use std::time::Duration;

/// A xorshift64* generator. Source: Marsaglia, "Xorshift RNGs", Journal of Statistical Software 8(14), 2003; the multiplier is Vigna's.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// Makes the dice of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        // Seeds are small and alike; a multiplication by an odd constant spreads their bits, and the state must not be 0.
        Self(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Gives a number below `bound`; 0 for a bound of 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // The high bits: the low ones of xorshift are weaker.
        (self.next() >> 11).checked_rem(bound).unwrap_or_default()
    }

    /// Tells whether something that happens in `per_mille` of 1,000 cases happens.
    pub(crate) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }

    /// Gives a time up to `longest`; short ones are as likely as long ones.
    pub(crate) fn delay(&mut self, longest: Duration) -> Duration {
        let longest_ms = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        let digits = u64::BITS - longest_ms.leading_zeros();
        let magnitude = self.below(u64::from(digits) + 1);
        Duration::from_millis(self.below(1_u64 << magnitude.min(62)).min(longest_ms))
    }

    /// Gives one of several.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        let at = self.below(of.len() as u64);
        of.get(usize::try_from(at).unwrap_or_default()).copied()
    }

    /// Gives an index below `len`.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or_default()
    }
}
