use proptest::prelude::*;

use super::{Division, Options, divide};

/// Options of a job: kind, GPUs, value.
type Job = Vec<(u32, u64, f64)>;

fn solved(jobs: &[Job], wait: &[f64], capacity: &[u64]) -> Division {
    let mut offsets = vec![0];
    let (mut kind, mut gpus, mut value) = (vec![], vec![], vec![]);
    for job in jobs {
        for option in job {
            kind.push(option.0);
            gpus.push(option.1);
            value.push(option.2);
        }
        offsets.push(kind.len());
    }
    divide(&Options { offsets: &offsets, kind: &kind, gpus: &gpus, value: &value, wait, capacity })
}

fn jobs() -> impl Strategy<Value = Vec<(f64, Job)>> {
    let option = (0..1_u32, 1_u64..9, -5.0..20.0_f64);
    let job = proptest::collection::vec(option, 0..5).prop_map(|mut job| {
        job.sort_by_key(|option| (option.0, option.1));
        job
    });
    proptest::collection::vec((-3.0..3.0_f64, job), 0..6)
}

/// The bound of one kind at a price, by its definition.
fn bound_at(given: &[(f64, Job)], gpus: u64, price: f64) -> f64 {
    let bests = given
        .iter()
        .map(|(wait, job)| job.iter().map(|option| option.2 - price * option.1 as f64).fold(*wait, f64::max));
    price * gpus as f64 + bests.sum::<f64>()
}

/// No price gives one kind a lower bound: the least is at the slope between two options of a job.
fn no_price_is_better(given: &[(f64, Job)], gpus: u64) {
    let (wait, jobs): (Vec<f64>, Vec<Job>) = given.iter().cloned().unzip();
    let solution = solved(&jobs, &wait, &[gpus]);
    let mut prices = vec![0.0];
    for (wait, job) in given {
        let points: Vec<(f64, f64)> = std::iter::once((0.0, *wait))
            .chain(job.iter().map(|option| (option.1 as f64, option.2)))
            .collect();
        for a in &points {
            prices.extend(points.iter().filter(|b| b.0 > a.0).map(|b| (b.1 - a.1) / (b.0 - a.0)));
        }
    }
    for price in prices.into_iter().filter(|&price| price >= 0.0) {
        let bound = bound_at(given, gpus, price);
        assert!(solution.bound <= bound + 1e-9 * bound.abs().max(1.0), "{price} gives {bound}: {solution:?}");
    }
}

proptest! {
    #[test]
    fn no_price_is_lower(given in jobs(), gpus in 0_u64..20) {
        no_price_is_better(&given, gpus);
    }
}

#[test]
fn alike_jobs_have_one_price() {
    // At a slope of 1/49 a product of 49 rounds to less than 1.
    for many in [2, 2000] {
        let mut given = vec![(0.0, vec![(0, 49, 1.0)]); many];
        given.push((0.0, vec![(0, 1, 100.0)]));
        no_price_is_better(&given, 49 * many as u64 / 2 + 1);
    }
}

#[test]
fn the_price_is_the_worth_of_one_gpu_more() {
    let job = vec![(0, 1, 4.0), (0, 2, 7.0), (0, 3, 9.0)];
    let solution = solved(&[job.clone(), job], &[0.0, 0.0], &[3]);
    assert_eq!((solution.value, solution.bound, solution.exact), (11.0, 11.0, true));
    assert!((solution.prices[0] - 3.0).abs() < 1e-9);
}

#[test]
fn without_jobs_or_gpus_nothing_runs() {
    assert_eq!(solved(&[], &[], &[8]).choice, vec![]);
    let solution = solved(&[vec![(0, 1, 2.0)]], &[1.0], &[0]);
    assert_eq!((solution.choice, solution.value, solution.exact), (vec![None], 1.0, true));
}

#[test]
fn many_kinds_have_a_bound_that_is_tight() {
    let jobs: Vec<Job> = (0..60_u32)
        .map(|job| {
            let speed = |kind: u32, gpus: u32| f64::from(gpus * (3 + (job * 7 + kind * 5) % 4)).powf(0.8);
            (0..3)
                .flat_map(|kind| (1..9).map(move |gpus| (kind, u64::from(gpus), speed(kind, gpus))))
                .collect()
        })
        .collect();
    let solution = solved(&jobs, &[0.0; 60], &[16, 32, 24]);
    assert!(solution.bound - solution.value <= 0.005 * solution.bound, "{solution:?}");
}
