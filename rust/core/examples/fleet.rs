//! Plans a fleet in Rust: two jobs on every number of GPUs from 1 to 64.
//!
//! `cargo run -p isobatch-core --example fleet`

use isobatch_core::bulk::{Fleet, InputColumn, InputTable, Pairs, ResultColumn, ResultSlice};
use isobatch_core::input::{Field, Input};

fn main() {
    let batches = [256, 480];
    let rates = [0.1, 3e-4];
    // A text is read by its field, once; the rows have its number.
    let optimizers = ["sgd", "adamw"].map(|name| Field::Optimizer.read(name)).to_vec();
    let durations = vec![Field::Duration.read("90000st")];
    let nodes: Vec<i64> = (1..=64).collect();

    let mut shared = Input::default();
    shared.set(Field::GpusPerNode, &Field::GpusPerNode.read("1"));
    shared.set(Field::MaxMicroBatch, &Field::MaxMicroBatch.read("32"));
    let fleet = Fleet {
        shared,
        workloads: &[],
        jobs: InputTable {
            rows: 2,
            columns: vec![
                (Field::EffectiveBatch, InputColumn::Ints(&batches)),
                (Field::Lr, InputColumn::Reals(&rates)),
                (Field::Optimizer, InputColumn::Codes(&[0, 1], optimizers)),
                (Field::Duration, InputColumn::Codes(&[0, 0], durations)),
            ],
        },
        clusters: InputTable { rows: 64, columns: vec![(Field::Nodes, InputColumn::Ints(&nodes))] },
        pairs: Pairs::Crossed,
        stop: None,
    };

    let rows = fleet.rows();
    let (mut micro_batch, mut accumulation) = (vec![0; rows], vec![0; rows]);
    let mut nearest = vec![0; rows];
    fleet.plan(vec![
        (ResultColumn::MicroBatch, ResultSlice::I32(&mut micro_batch)),
        (ResultColumn::Accumulation, ResultSlice::I32(&mut accumulation)),
        (ResultColumn::NearestWorldSize, ResultSlice::I64(&mut nearest)),
    ]);
    for row in 0..rows {
        let (job, gpus) = (row / 64, row % 64 + 1);
        if micro_batch[row] > 0 {
            println!("job {job}, {gpus} GPUs: {} × {} × {gpus}", micro_batch[row], accumulation[row]);
        } else {
            println!("job {job}, {gpus} GPUs: not possible; nearest {}", nearest[row]);
        }
    }
    let feasible = micro_batch.iter().filter(|&&size| size > 0).count();
    println!("{feasible} of {rows} rows have a plan");
    assert_eq!(feasible, 7 + 18);
}
