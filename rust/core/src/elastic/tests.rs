//! The sieve against trying everything.
use super::*;
use proptest::prelude::*;

/// Nobody stops.
static GO: AtomicBool = AtomicBool::new(false);

/// Every batch, every count, every micro-batch: slow and obvious.
fn brute(config: &Config) -> (f64, Option<u64>) {
    let mut best = (0.0, None);
    for batch in 1..=config.max_batch {
        let works = |g: u64| {
            g.is_multiple_of(config.model_parallel)
                && g.is_multiple_of(config.gpus_per_node.unwrap_or(1))
                && config.micro_batches.iter().any(|m| batch.is_multiple_of(g / config.model_parallel * m))
        };
        let total: f64 = match config.gpus {
            Counts::Range(lo, hi) => (lo..=hi).filter(|&g| works(g)).count() as f64,
            Counts::List(gpus, weights) => {
                let weight = |i: usize| weights.map_or(1.0, |w| w[i]);
                (0..gpus.len()).filter(|&i| works(gpus[i])).map(weight).sum()
            }
        };
        if total > best.0 + 1e-9 || (total > 0.0 && total > best.0 - 1e-9 && config.prefer_larger) {
            best = (total, Some(batch));
        }
    }
    best
}

fn counts() -> impl Strategy<Value = Vec<(u64, f64)>> {
    prop::collection::btree_map(1_u64..200, 0.0..3.0_f64, 1..20).prop_map(|m| m.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn as_good_as_trying_everything(
        max_batch in 1_u64..1500,
        micro_batches in prop::collection::vec(1_u64..40, 1..5),
        listed in prop::option::of(counts()),
        weighted: bool,
        (lo, width) in (1_u64..60, 0_u64..150),
        model_parallel in 1_u64..4,
        gpus_per_node in prop::option::of(1_u64..9),
        prefer_larger: bool,
    ) {
        let (gpus, weights): (Vec<u64>, Vec<f64>) = listed.clone().unwrap_or_default().into_iter().unzip();
        let gpus = match listed {
            None => Counts::Range(lo, lo + width),
            Some(_) => Counts::List(&gpus, weighted.then_some(&weights)),
        };
        let config =
            Config { max_batch, micro_batches: &micro_batches, gpus, model_parallel, gpus_per_node, prefer_larger };
        let (total, batch) = brute(&config);
        let found = elastic(&[config], &GO);
        prop_assert!((found.weight[0] - total).abs() < 1e-9, "{found:?} {total}");
        prop_assert_eq!(found.batch[0], batch.unwrap_or(0));
        for gpus in &found.gpus {
            let replicas = gpus / model_parallel;
            let (micro, passes) = split(found.batch[0], replicas, &micro_batches).unwrap();
            prop_assert_eq!(replicas * micro * passes, found.batch[0]);
        }
    }
}

#[test]
fn highly_composite_where_every_count_is_wanted() {
    let config = Config {
        max_batch: 1_000_000,
        micro_batches: &[1],
        gpus: Counts::Range(1, MAX_GPUS),
        model_parallel: 1,
        gpus_per_node: None,
        prefer_larger: false,
    };
    let found = elastic(&[config], &GO);
    assert_eq!((found.batch[0], found.gpus.len()), (720_720, 240));
}

#[test]
fn the_largest_caps_end() {
    let config = Config {
        max_batch: MAX_CAP,
        micro_batches: &[3, 4, 7],
        gpus: Counts::Range(1, 1024),
        model_parallel: 2,
        gpus_per_node: Some(8),
        prefer_larger: true,
    };
    assert!(elastic(&[config], &GO).gpus.len() > 40);
}

#[test]
fn threads_answer_as_the_caller_does() {
    let micros: Vec<Vec<u64>> = (1..500).map(|i| vec![1 + i % 13, 2 + i % 7]).collect();
    let configs: Vec<Config> = (1..)
        .zip(&micros)
        .map(|(i, micro_batches)| Config {
            max_batch: 100 * i,
            micro_batches,
            gpus: Counts::Range(1 + i % 3, 64),
            model_parallel: 1,
            gpus_per_node: None,
            prefer_larger: true,
        })
        .collect();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    assert_eq!(pool.install(|| elastic(&configs, &GO)), elastic(&configs, &GO));
}
