//! Clusters as the lanes plan them.

use super::arithmetic::BLOCK;
use super::numbers::NumberColumn;
use crate::bulk::columns::{InputColumn, InputTable};
use crate::input::{Cluster, Field, Input, MAX_GPUS, Read, Record, Value};

/// The clusters of a fleet: of each its GPUs, 0 where it is for `plan`, and its model parallelism, 0 where
/// the recipe's stands.
#[derive(Debug)]
pub(crate) struct ClusterShapes(pub Vec<(f64, f64)>);

impl ClusterShapes {
    /// `None` where a setting differs between the clusters.
    pub fn of(shared: &Input, clusters: &InputTable<'_>) -> Option<ClusterShapes> {
        let mut defaults = shared.clone();
        let mut numbers = Vec::new();
        let mut names = Vec::new();
        for (field, data) in &clusters.columns {
            match (field.record(), NumberColumn::of(*field, data), data) {
                (Record::Cluster, Some(column), _) => numbers.push(column),
                (Record::Cluster, None, InputColumn::Codes(codes, values)) => {
                    let legal = |value: &Value| matches!(value, Value::Missing | Value::Read(Read::Gpu(_)));
                    names.push((codes, values.iter().map(legal).collect::<Vec<_>>()));
                }
                _ => return None,
            }
            defaults.set(*field, &Value::Missing);
        }

        // All of it, so that a new field does not compile until somebody has decided: the rest is for
        // profiles alone.
        let &Cluster {
            nodes,
            gpus_per_node,
            model_parallel,
            expert_parallel,
            gpu: _,
            memory_gib: _,
            intra_gb_s: _,
            inter_gb_s: _,
            latency_us: _,
            price_per_gpu_hour: _,
        } = &defaults.cluster;
        let model_parallel = model_parallel.unwrap_or(0) as f64;
        let expert_parallel = expert_parallel.unwrap_or(1) as f64;
        let rows: Vec<u32> = (0_u32..).take(clusters.rows).collect();
        let mut shapes = Vec::with_capacity(rows.len());
        for rows in rows.chunks(BLOCK) {
            let mut nodes = [nodes as f64; BLOCK];
            let mut gpus_per_node = [gpus_per_node as f64; BLOCK];
            let mut model_parallel = [model_parallel; BLOCK];
            let mut expert_parallel = [expert_parallel; BLOCK];
            let mut left = [u64::from(shared.fault.is_some()); BLOCK];
            for column in &numbers {
                let lanes = match column.field {
                    Field::Nodes => &mut nodes,
                    Field::GpusPerNode => &mut gpus_per_node,
                    Field::ClusterModelParallel => &mut model_parallel,
                    Field::ClusterExpertParallel => &mut expert_parallel,
                    // For profiles alone, but they must be legal.
                    _ => &mut [0.0; BLOCK],
                };
                column.take(rows, lanes, &mut left);
            }
            for (codes, legal) in &names {
                for (left, row) in left.iter_mut().zip(rows) {
                    *left |= u64::from(!legal[codes[*row as usize] as usize]);
                }
            }
            shapes.extend((0..rows.len()).map(|i| {
                let world_size = nodes[i] * gpus_per_node[i];
                let usual = left[i] == 0 && expert_parallel[i] < 2.0;
                let legal = usual && world_size <= MAX_GPUS as f64;
                (if legal { world_size } else { 0.0 }, model_parallel[i])
            }));
        }
        Some(ClusterShapes(shapes))
    }
}
