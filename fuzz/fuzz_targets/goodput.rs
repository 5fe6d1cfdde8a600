//! The best split is in its limits, finite, and no other split that is tried does better.
#![no_main]

use isobatch_core::forecast::{Case as Pair, optimize};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Case {
    replicas: u8,
    /// As fractions of each other or in powers of two: all magnitudes, few bytes.
    constant: (u8, i8),
    per_sample: (u8, i8),
    floor: (u8, i8),
    sync: (u8, i8),
    update: (u8, i8),
    noise: (u8, i8),
    overlap: u8,
    lead: u8,
    batches: (u16, u16, u16, u8),
    cap: (u16, u8),
    others: Vec<(u16, u8)>,
}

fn real((digits, power): (u8, i8)) -> f64 {
    f64::from(digits) * 2.0_f64.powi(i32::from(power))
}

fuzz_target!(|case: Case| {
    let (tuned, least, most, power) = case.batches;
    let pair = Pair {
        replicas: u64::from(case.replicas).max(1),
        compute_constant: real(case.constant),
        compute_per_sample: real(case.per_sample).max(1e-300),
        compute_floor: real(case.floor),
        sync_seconds: real(case.sync),
        overlap: 1.0 + f64::from(case.overlap) / 255.0 * 9.0,
        lead: f64::from(case.lead) / 255.0,
        update: real(case.update),
        noise_scale: real(case.noise).max(1e-300),
        tuned_batch: u64::from(tuned).max(1),
        min_batch: u64::from(least).max(1),
        max_batch: u64::from(most).max(1) << (power % 24),
        max_micro_batch: u64::from(case.cap.0).max(1) << (case.cap.1 % 24),
    };
    let legal = |micro: u64, accumulation: u64| {
        let batch = u128::from(micro) * u128::from(accumulation) * u128::from(pair.replicas);
        (1..=pair.max_micro_batch).contains(&micro)
            && accumulation > 0
            && (u128::from(pair.min_batch)..=u128::from(pair.max_batch)).contains(&batch)
    };
    let found = optimize(&pair);
    if let Some(best) = found {
        assert!(legal(best.micro_batch, best.accumulation), "{pair:?} {best:?}");
        assert!(!best.goodput.is_nan() && best.goodput >= 0.0, "{pair:?} {best:?}");
    }
    for (micro, accumulation) in &case.others {
        let (micro, accumulation) = (u64::from(*micro), u64::from(*accumulation));
        if legal(micro, accumulation) {
            let best = found.unwrap_or_else(|| panic!("{pair:?} has {micro} x {accumulation}"));
            let other = pair.at(micro, accumulation);
            assert!(best.goodput >= other.goodput * (1.0 - 1e-9), "{pair:?} {best:?} {other:?}");
        }
    }
});
