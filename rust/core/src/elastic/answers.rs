//! Answers as columns, and how a batch is split at one of its counts.

/// Answers to [`Config`](super::Config)s, as columns: one value each in `batch` and `weight`, and for every GPU count that
/// works one in `gpus` (ascending).
#[derive(Clone, Debug, PartialEq)]
pub struct Answers {
    /// The best batch; 0 where no allowed batch works at any count.
    pub batch: Vec<u64>,
    /// Summed weight of the counts that work.
    pub weight: Vec<f64>,
    /// Where each answer's counts begin in `gpus`, and where the last one's end.
    pub offsets: Vec<u64>,
    /// The GPU counts that work.
    pub gpus: Vec<u64>,
}

impl Answers {
    pub(super) fn with_room(counts: usize) -> Answers {
        Answers { batch: vec![], weight: vec![], offsets: vec![0], gpus: Vec::with_capacity(counts) }
    }

    pub(super) fn close(&mut self, batch: u64, weight: f64) {
        self.batch.push(batch);
        self.weight.push(weight);
        self.offsets.push(self.gpus.len() as u64);
    }

    pub(super) fn join(parts: &[Answers]) -> Answers {
        let mut all = Answers::with_room(parts.iter().map(|part| part.gpus.len()).sum());
        for part in parts {
            let before = all.gpus.len() as u64;
            all.batch.extend_from_slice(&part.batch);
            all.weight.extend_from_slice(&part.weight);
            all.offsets.extend(part.offsets[1..].iter().map(|end| before + end));
            all.gpus.extend_from_slice(&part.gpus);
        }
        all
    }
}

/// Samples per replica per pass, the largest of the micro-batches that works, and passes per optimizer step; none where
/// none works.
#[must_use]
pub fn split(batch: u64, replicas: u64, micro_batches: &[u64]) -> Option<(u64, u64)> {
    if !batch.is_multiple_of(replicas) {
        return None;
    }
    let share = batch / replicas;
    let micro = micro_batches.iter().copied().filter(|&m| share.is_multiple_of(m)).max()?;
    Some((micro, share / micro))
}
