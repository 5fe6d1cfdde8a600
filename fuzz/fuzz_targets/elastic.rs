//! The elastic batch divides at every count that is named, and no batch that is tried works at more.
#![no_main]

use std::sync::atomic::AtomicBool;

use isobatch_core::elastic::{Config, Counts, elastic, split};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Case {
    max_batch: u16,
    micro_batches: Vec<u8>,
    range: (u8, u8),
    listed: Option<Vec<(u8, u8)>>,
    model_parallel: u8,
    gpus_per_node: Option<u8>,
    prefer_larger: bool,
}

fuzz_target!(|case: Case| {
    let micro_batches: Vec<u64> = case.micro_batches.iter().take(6).map(|m| u64::from(*m).max(1)).collect();
    let mut listed = case.listed.unwrap_or_default();
    listed.sort_unstable_by_key(|(count, _)| *count);
    listed.dedup_by_key(|(count, _)| *count);
    let counts: Vec<u64> = listed.iter().map(|(count, _)| u64::from(*count).max(1)).collect();
    let weights: Vec<f64> = listed.iter().map(|(_, weight)| f64::from(*weight)).collect();
    if micro_batches.is_empty() || counts.windows(2).any(|pair| pair[0] == pair[1]) {
        return;
    }
    let (low, high) = (u64::from(case.range.0).max(1), u64::from(case.range.1).max(1));
    let range = if counts.is_empty() {
        Counts::Range(low, high.max(low))
    } else {
        Counts::List(&counts, Some(&weights))
    };
    let config = Config {
        max_batch: u64::from(case.max_batch % 512).max(1),
        micro_batches: &micro_batches,
        gpus: range,
        model_parallel: u64::from(case.model_parallel % 9).max(1),
        gpus_per_node: case.gpus_per_node.map(|count| u64::from(count % 17).max(1)),
        prefer_larger: case.prefer_larger,
    };
    let every: Vec<(u64, f64)> = match range {
        Counts::Range(low, high) => (low..=high).map(|count| (count, 1.0)).collect(),
        Counts::List(..) => counts.iter().copied().zip(weights.iter().copied()).collect(),
    };
    let whole = |count: u64| {
        count % config.model_parallel == 0 && config.gpus_per_node.is_none_or(|node| count % node == 0)
    };
    let works = |batch: u64| -> Vec<(u64, f64)> {
        let splits = |count: u64| split(batch, count / config.model_parallel, &micro_batches).is_some();
        every
            .iter()
            .copied()
            .filter(|&(count, weight)| weight > 0.0 && whole(count) && splits(count))
            .collect()
    };
    let answers = elastic(&[config], &AtomicBool::new(false));
    let (batch, weight) = (answers.batch[0], answers.weight[0]);
    if batch > 0 {
        assert!(batch <= config.max_batch, "{config:?} {answers:?}");
        let expected = works(batch);
        assert_eq!(answers.gpus, expected.iter().map(|pair| pair.0).collect::<Vec<_>>(), "{config:?}");
        assert_eq!(weight, expected.iter().map(|pair| pair.1).sum::<f64>(), "{config:?} {answers:?}");
    }
    for other in 1..=config.max_batch {
        let rival: f64 = works(other).iter().map(|pair| pair.1).sum();
        assert!(rival <= weight, "{config:?} {answers:?}: {other} works at {rival}");
        let tied = rival == weight && weight > 0.0;
        assert!(
            !tied || if config.prefer_larger { other <= batch } else { other >= batch },
            "{config:?} {answers:?}: {other}"
        );
    }
});
