//! Where a job runs, how its batch is split, and how its replicas lie on the nodes.

/// Where a job runs and how its batch is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// All GPUs.
    pub world_size: u64,
    /// GPUs of a node; the last node may be partly used.
    pub gpus_per_node: u64,
    /// GPUs that hold one replica.
    pub model_parallel: u64,
    /// Samples per replica per pass.
    pub micro_batch: u64,
    /// Passes per step.
    pub accumulation: u64,
}

/// How the replicas lie on the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Replicas.
    pub all: u64,
    /// Replicas that share a node.
    pub per_node: u64,
    /// Nodes, or groups of nodes where a replica spans several.
    pub groups: u64,
}

impl Placement {
    /// The placement of a shape.
    #[must_use]
    pub fn of(shape: &Shape) -> Placement {
        let all = shape.world_size / shape.model_parallel;
        let per_node = (shape.gpus_per_node / shape.model_parallel).clamp(1, all);
        Placement { all, per_node, groups: all.div_ceil(per_node) }
    }
}
