//! Inputs of the planner from the fuzzer's bytes, and the laws of a planned row, for all targets.

use isobatch_core::input::{Field, Input, Value};
use isobatch_core::plan::{Row, UNKNOWN};
use isobatch_core::reason::{Reason, Status};
use libfuzzer_sys::arbitrary::{self, Arbitrary};

/// Texts that some field knows, so that a few bytes say much.
const WORDS: &[&str] = &[
    "",
    "sgd",
    "adam",
    "adamw",
    "rmsprop",
    "lars",
    "lamb",
    "lion",
    "muon",
    "adafactor",
    "0.9, 0.95",
    "(0, 0.999)",
    "0.9 1",
    "lr_multiplied",
    "independent",
    "90ep",
    "0.3ep",
    "1000st",
    "1st",
    "1e6sp",
    "3e9tok",
    "9e15tok",
    "5%",
    "28.43%",
    "100%",
    "cosine",
    "true",
    "false",
    "sampler",
    "loader",
    "torch",
    "lightning",
    "transformers",
    "megatron",
    "16 16 9765",
    "1 1 1000000",
    "0:64 1M:256",
    "0:16 2.4B:320",
    "fp32",
    "bf16",
    "even",
    "uneven",
    "ragged",
    "smaller",
    "half_life:0.9",
    "auto:0.95",
    "8^0.3",
    "keep",
    "grow",
    "goodput",
    "768",
    "auto",
    "none",
    "linear",
    "sqrt",
    "sde",
    "adascale",
    "adamscale",
    "saturating",
    "surge",
    "muon",
    "power",
    "H100",
    "sde_smooth",
];

/// A value as a field may be given it.
#[derive(Arbitrary, Clone, Debug)]
pub enum Given {
    Missing,
    /// Small counts, of which most fields have some.
    Count(u16),
    /// 2^n + the other, around the limits.
    Power(u8, i8),
    Int(i64),
    Share(u16),
    Real(f64),
    Word(u8),
    Text(String),
}

impl Given {
    pub fn value(&self, field: Field) -> Value {
        match self {
            Given::Missing => Value::Missing,
            Given::Count(n) => Value::Int(i64::from(*n)),
            Given::Power(n, more) => Value::Int((1_i64 << (n % 63)).wrapping_add(i64::from(*more))),
            Given::Int(n) => Value::Int(*n),
            Given::Share(n) => Value::Real(f64::from(*n) / 65536.0),
            Given::Real(x) => Value::Real(*x),
            Given::Word(n) => field.read(WORDS[usize::from(*n) % WORDS.len()]),
            Given::Text(text) => field.read(text),
        }
    }
}

/// The field of a number.
pub fn field(number: u8) -> Field {
    Field::ALL[usize::from(number) % Field::ALL.len()]
}

/// The laws of every planned row.
pub fn hold(input: &Input, row: &Row) {
    if row.reasons.status() == Status::Infeasible {
        assert_eq!(
            (row.micro_batch, row.effective_batch, row.total_steps),
            (UNKNOWN, UNKNOWN, UNKNOWN),
            "{input:?} {row:?}"
        );
        assert!(row.lr.is_nan(), "{input:?} {row:?}");
        return;
    }
    let product = [row.micro_batch, row.accumulation, row.data_parallel]
        .iter()
        .map(|n| i128::from(*n))
        .product::<i128>();
    let batch = i128::from(row.effective_batch);
    if row.reasons.contains(Reason::Ragged) || row.reasons.contains(Reason::Uneven) {
        assert!(product >= batch && batch >= i128::from(row.data_parallel), "{input:?} {row:?}");
    } else {
        assert_eq!(product, batch, "{input:?} {row:?}");
    }
    assert!(row.micro_batch >= 1 && row.micro_batch.unsigned_abs() <= row.cap.samples(), "{input:?} {row:?}");
    assert!(
        row.effective_batch.unsigned_abs() <= input.settings.max_batch.unwrap_or(1 << 40),
        "{input:?} {row:?}"
    );
    assert!(row.lr > 0.0 && row.lr < f64::INFINITY, "{input:?} {row:?}");
    for real in [row.lr_scale, row.batch_change, row.weight_decay, row.moments.eps, row.min_lr, row.warmup_lr]
    {
        assert!(!real.is_infinite(), "{input:?} {row:?}");
    }
    for share in [row.moments.beta1, row.moments.beta2, row.momentum, row.ema_decay] {
        assert!(share.is_nan() || (0.0..1.0).contains(&share), "{input:?} {row:?}");
    }
    for count in [row.steps_per_epoch, row.total_steps] {
        assert!(count == UNKNOWN || (1..=1 << 53).contains(&count), "{input:?} {row:?}");
    }
    let epoch = [row.samples_per_epoch, row.padded_samples, row.dropped_samples];
    if let Some(dataset) = input.recipe.dataset_size.filter(|_| row.steps_per_epoch != UNKNOWN) {
        assert_eq!(epoch[0] - epoch[1] + epoch[2], i64::try_from(dataset).unwrap(), "{input:?} {row:?}");
        assert!(epoch[1] == 0 || epoch[2] == 0, "{input:?} {row:?}");
    } else {
        assert_eq!(epoch, [UNKNOWN; 3], "{input:?} {row:?}");
    }
}
