//! Batches that grow during the run: the steps they take.

use super::length::{MAX_COUNT, decimal};
use crate::batch::MAX_BATCH;

/// Every stage is looked at several times a plan; training runs have some hundred.
const MAX_STAGES: u64 = 1 << 14;

/// A ramp as the recipe gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ramp {
    /// From `start`, by `increment`, evenly over `samples`: Megatron's `--rampup-batch-size START INCREMENT
    /// SAMPLES`.
    Linear {
        /// The first batch.
        start: u64,
        /// The samples that each stage adds.
        increment: u64,
        /// Samples until the full batch is reached.
        samples: u64,
    },
    /// Batches by the tokens seen: Megatron's `--step-batch-size-schedule`.
    ByTokens(
        /// (tokens from which it holds, batch), the first from 0.
        Vec<(u64, u64)>,
    ),
}

/// A batch and the samples at which it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Samples in a step.
    pub batch: u64,
    /// The first sample count at which a step takes the next stage's batch.
    pub until: u64,
}

impl Ramp {
    /// Reads `"192 16 9765625"` (start, increment, samples) or `"0:16 2.4B:320 4.8B:1536"` (tokens:batch,
    /// with K, M, B or T), the pairs with spaces or commas between them.
    #[must_use]
    pub fn parse(text: &str) -> Option<Ramp> {
        let words: Vec<&str> =
            text.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty()).collect();
        if text.contains(':') {
            let stages: Option<Vec<(u64, u64)>> = words.iter().map(|word| stage(word)).collect();
            let stages = stages?;
            let ordered = stages.windows(2).all(|pair| pair[0].0 < pair[1].0);
            return (ordered && stages[0].0 == 0).then_some(Ramp::ByTokens(stages));
        }
        let [start, increment, samples] = words[..] else { return None };
        let (start, increment) = (batch(start)?, batch(increment)?);
        let samples = whole(samples).filter(|s| (1..=MAX_COUNT).contains(s))?;
        Some(Ramp::Linear { start, increment, samples })
    }

    /// Whether it ends at the batch, in whole increments and in at most 2^14 of them.
    pub(crate) fn reaches(&self, full: u64) -> bool {
        match self {
            Ramp::Linear { start, increment, .. } => full
                .checked_sub(*start)
                .is_some_and(|rise| rise.is_multiple_of(*increment) && rise / increment <= MAX_STAGES),
            Ramp::ByTokens(steps) => steps.last().is_some_and(|last| last.1 == full),
        }
    }

    /// The stages of a run that has consumed so many samples, up to `full`, the batch that holds to the end,
    /// each scaled by `full / tuned`; `None` where a scaled batch is not whole, the ramp does not reach
    /// `tuned`, or tokens come without `seq_len`.
    #[must_use]
    pub fn stages(&self, full: u64, tuned: u64, seq_len: Option<u64>, consumed: u64) -> Option<Vec<Stage>> {
        if !self.reaches(tuned) {
            return None;
        }
        let left = self.tuned_stages(tuned, seq_len)?.into_iter().filter(|stage| stage.until > consumed);
        left.map(|stage| {
            let wide = u128::from(stage.batch) * u128::from(full);
            let whole = wide.is_multiple_of(u128::from(tuned));
            let batch = u64::try_from(wide / u128::from(tuned)).ok().filter(|_| whole)?;
            Some(Stage { batch, ..stage })
        })
        .collect()
    }

    fn tuned_stages(&self, tuned: u64, seq_len: Option<u64>) -> Option<Vec<Stage>> {
        match self {
            Ramp::Linear { start, increment, samples } => {
                let stages = (tuned - start) / increment;
                // The batch steps up once consumed ≥ samples·i/stages, compared as integers.
                let until = |i: u64| {
                    u64::try_from((u128::from(*samples) * u128::from(i)).div_ceil(stages.into())).ok()
                };
                let mut all: Vec<Stage> = (0..stages)
                    .map(|i| Some(Stage { batch: start + i * increment, until: until(i + 1)? }))
                    .collect::<Option<_>>()?;
                all.push(Stage { batch: tuned, until: u64::MAX });
                Some(all)
            }
            Ramp::ByTokens(steps) => {
                let seq_len = seq_len?;
                // Megatron floors the tokens to samples.
                let ends = steps.iter().skip(1).map(|s| s.0 / seq_len).chain([u64::MAX]);
                Some(steps.iter().zip(ends).map(|(s, until)| Stage { batch: s.1, until }).collect())
            }
        }
    }
}

/// A whole number as Python reads it: single underscores between the digits are none of it.
fn whole(text: &str) -> Option<u64> {
    let groups: Vec<&str> = text.split('_').collect();
    if groups.len() > 1 && !groups.iter().all(|group| group.starts_with(|c: char| c.is_ascii_digit())) {
        return None;
    }
    groups.concat().parse().ok()
}

fn batch(text: &str) -> Option<u64> {
    whole(text).filter(|b| (1..=MAX_BATCH).contains(b))
}

fn stage(word: &str) -> Option<(u64, u64)> {
    let (tokens, size) = word.split_once(':')?;
    let (number, factor) = [("K", 1e3), ("M", 1e6), ("B", 1e9), ("T", 1e12)]
        .into_iter()
        .find_map(|(suffix, factor)| Some((tokens.strip_suffix(suffix)?, factor)))
        .unwrap_or((tokens, 1.0));
    decimal(number)?;
    // As Megatron computes it, in floats: int(float(number) * factor).
    let tokens = number.parse::<f64>().ok()? * factor;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 2^53, floored")]
    let tokens = (tokens <= MAX_COUNT as f64).then_some(tokens as u64)?;
    Some((tokens, batch(size)?))
}

/// The steps until `samples` are consumed: those that fit (`floor`), or one more for what is left.
#[must_use]
pub fn steps(stages: &[Stage], samples: u64, floor: bool) -> u64 {
    let (mut consumed, mut steps) = (0u64, 0u64);
    for stage in stages {
        let end = stage.until.min(samples);
        if consumed < end {
            let whole = (end - consumed).div_ceil(stage.batch);
            (consumed, steps) = (consumed + whole * stage.batch, steps + whole);
        }
    }
    if floor && consumed > samples { steps - 1 } else { steps }
}

/// The samples consumed after `steps` steps.
#[must_use]
pub fn samples(stages: &[Stage], steps: u64) -> u64 {
    let (mut consumed, mut left) = (0u64, steps);
    for stage in stages {
        let whole = stage.until.saturating_sub(consumed).div_ceil(stage.batch).min(left);
        (consumed, left) = (consumed + whole * stage.batch, left - whole);
    }
    consumed
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn too_many_stages_are_no_ramp() {
        let stages = |full| Ramp::parse("1 1 1000000").unwrap().stages(full, full, None, 0);
        assert_eq!(stages(1 + MAX_STAGES).map(|stages| stages.len() as u64), Some(MAX_STAGES + 1));
        assert_eq!(stages(2 + MAX_STAGES), None);
    }

    #[test]
    fn past_stages_do_not_count() {
        let ramp = Ramp::parse("1 1 100").unwrap();
        let stages = |full, consumed| ramp.stages(full, 4, None, consumed);
        assert_eq!(stages(6, 0), None); // 1.5 samples,
        assert_eq!(stages(6, 99), None); // 4.5,
        assert_eq!(stages(6, 100), Some(vec![Stage { batch: 6, until: u64::MAX }]));
        assert_eq!(stages(4, 33).map(|stages| stages.len()), Some(4)); // a third is 33.3
        assert_eq!(stages(4, 34).map(|stages| stages.len()), Some(3));
    }

    #[test]
    fn megatrons_own_example() {
        let ramp = Ramp::parse("0:16 2.4B:320 4.8B:1536");
        assert_eq!(ramp, Some(Ramp::ByTokens(vec![(0, 16), (2_400_000_000, 320), (4_800_000_000, 1536)])));
        assert_eq!(Ramp::parse("0:16, 2.4B:320,4.8B:1536"), ramp);
        assert_eq!(Ramp::parse("0:16 1.0015K:32"), Ramp::parse("0:16 1001:32"));
    }

    #[test]
    fn bad_ramps() {
        let bad = "| 1 2 | 0 16 100 | 1:2 | 0:4 0:8 | 0:x | a b c | 1 2 3 4 | 0:768 9T9:1 | \
            1 1 99999999999999999999";
        for bad in bad.split('|').map(str::trim) {
            assert_eq!(Ramp::parse(bad), None, "{bad}");
        }
        assert_eq!(Ramp::parse("100 16 1000").unwrap().stages(2048, 2048, None, 0), None);
    }

    proptest! {
        #[test]
        fn stages_count_as_a_loop_over_steps(
            start in 1u64..20, increment in 1u64..9, rises in 0u64..9, over in 1u64..2000, run in 1u64..9000,
        ) {
            let full = start + rises * increment;
            let ramp = Ramp::Linear { start, increment, samples: over };
            let stages = ramp.stages(full, full, None, 0).unwrap();
            let (mut consumed, mut count) = (0, 0);
            while consumed < run {
                let grown = (start + consumed * rises / over * increment).min(full);
                let batch = if consumed > over { full } else { grown };
                (consumed, count) = (consumed + batch, count + 1);
            }
            prop_assert_eq!(steps(&stages, run, false), count);
            prop_assert_eq!(samples(&stages, count), consumed);
            prop_assert_eq!(steps(&stages, run, true), count - u64::from(consumed > run));
        }
    }
}
