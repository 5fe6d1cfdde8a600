//! Measured constants, and links that have two of them.

/// A measured constant and half the width of its 95 % interval (0 where it is exact, or not known).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Constant {
    /// The value.
    pub value: f64,
    /// Half the width of the interval, in the same unit.
    pub error: f64,
}

/// A link: what one message costs, and how fast bytes follow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Link {
    /// Seconds a message.
    pub latency: Constant,
    /// Seconds a byte: one over the bandwidth.
    pub per_byte: Constant,
}
