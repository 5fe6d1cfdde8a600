//! Number formats of a training step.

/// The number format that a training step computes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// IEEE single precision.
    Fp32,
    /// Single precision whose products are rounded to 10 bits on tensor cores.
    Tf32,
    /// Brain floating point under autocast.
    Bf16,
    /// Half precision under autocast.
    Fp16,
}

impl Precision {
    /// Bytes of a weight, and of its gradient.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Precision::Fp32 | Precision::Tf32 => 4,
            Precision::Bf16 | Precision::Fp16 => 2,
        }
    }

    /// The names that users write, in the order of the variants.
    pub const ALL: [(&'static str, Precision); 4] = [
        ("fp32", Precision::Fp32),
        ("tf32", Precision::Tf32),
        ("bf16", Precision::Bf16),
        ("fp16", Precision::Fp16),
    ];
}
