//! A division near the bound: the jobs' bests at the prices, made to fit, and then grown into what is left.

use super::Options;

/// Rounds of growth, at most.
const ROUNDS: usize = 64;

type Choice = Option<usize>;

/// Makes the choices fit the pool, and leaves no gain that fits.
pub(super) fn divide(options: &Options<'_>, mut choice: Vec<Choice>, prices: &[f64]) -> Vec<Choice> {
    let mut free = options.free(&choice);
    while free.iter().any(|&gpus| gpus < 0) {
        shrink(options, &mut choice, &mut free, prices);
    }
    for _ in 0..ROUNDS {
        if !grow(options, &mut choice, &mut free) {
            break;
        }
    }
    choice
}

/// Takes GPUs where there are too few, first from whom they are worth least.
fn shrink(options: &Options<'_>, choice: &mut [Choice], free: &mut [i64], prices: &[f64]) {
    let mut moves: Vec<(f64, usize, Choice)> = (0..choice.len())
        .filter_map(|job| {
            let (_, kind, gpus) = options.at(job, choice[job]);
            if gpus == 0 || free[kind] >= 0 {
                return None;
            }
            let now = options.worth(job, choice[job], prices);
            let fewer = options.choices(job).filter_map(|option| {
                let (_, into, count) = options.at(job, option);
                let less = count == 0 || into == kind && count < gpus;
                less.then(|| {
                    ((now - options.worth(job, option, prices)) / (gpus - count) as f64, job, option)
                })
            });
            fewer.min_by(|a, b| a.0.total_cmp(&b.0))
        })
        .collect();
    moves.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    for (_, job, option) in moves {
        let (_, kind, gpus) = options.at(job, choice[job]);
        if free[kind] < 0 {
            free[kind] += (gpus - options.at(job, option).2).cast_signed();
            choice[job] = option;
        }
    }
}

/// Gives what is free, first to whom a GPU more is worth most; whether anyone got some.
fn grow(options: &Options<'_>, choice: &mut [Choice], free: &mut [i64]) -> bool {
    let need = |job: usize, choice: &[Choice], option: usize, free: &[i64]| {
        let (_, from, gpus) = options.at(job, choice[job]);
        let (_, kind, count) = options.at(job, Some(option));
        let back = if gpus > 0 && from == kind { gpus } else { 0 };
        let extra = count.cast_signed() - back.cast_signed();
        (extra <= free[kind]).then_some(extra)
    };
    let mut moves: Vec<(f64, usize, usize)> = (0..choice.len())
        .filter_map(|job| {
            let now = options.at(job, choice[job]).0;
            let better = options.of(job).filter(|&option| options.value[option] > now);
            let fitting = better.filter_map(|option| {
                let extra = need(job, choice, option, free)?;
                Some(((options.value[option] - now) / extra.max(0) as f64, job, option))
            });
            fitting.max_by(|a, b| a.0.total_cmp(&b.0).then(b.2.cmp(&a.2)))
        })
        .collect();
    moves.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut grown = false;
    for (_, job, option) in moves {
        if need(job, choice, option, free).is_none() {
            continue;
        }
        let (_, from, gpus) = options.at(job, choice[job]);
        free[from] += gpus.cast_signed();
        free[options.kind[option] as usize] -= options.gpus[option].cast_signed();
        choice[job] = Some(option);
        grown = true;
    }
    grown
}
