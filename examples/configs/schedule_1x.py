# mmdetection, configs/_base_/schedules/schedule_1x.py
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=12, val_interval=1)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type="MultiStepLR", begin=0, end=12, by_epoch=True, milestones=[8, 11], gamma=0.1),
]
optim_wrapper = dict(
    type="OptimWrapper", optimizer=dict(type="SGD", lr=0.02, momentum=0.9, weight_decay=0.0001)
)
auto_scale_lr = dict(enable=False, base_batch_size=16)
