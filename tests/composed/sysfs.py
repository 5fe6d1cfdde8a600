"""Composed trees of /sys and /proc, with the files and the wording of the kernel's RDMA and cgroup interfaces. Devices are made up."""


def port(
    root,
    device,
    *,
    state="4: ACTIVE",
    rate="400 Gb/sec (4X NDR)",
    layer="InfiniBand",
    driver="mlx5_core",
    errors=None,
):
    """A port of a device under `root`, as /sys/class/infiniband has it."""
    folder = root / device / "ports" / "1"
    (folder / "counters").mkdir(parents=True, exist_ok=True)
    for name, text in (("state", state), ("rate", rate), ("link_layer", layer), ("phys_state", "5: LinkUp")):
        (folder / name).write_text(text + "\n")
    for name, count in (errors if errors is not None else {"symbol_error": 0, "link_downed": 0}).items():
        (folder / "counters" / name).write_text(f"{count}\n")
    (root.parent / "drivers" / driver).mkdir(parents=True, exist_ok=True)
    (root / device / "device").mkdir(exist_ok=True)
    link = root / device / "device" / "driver"
    if not link.is_symlink():
        link.symlink_to(root.parent / "drivers" / driver)


def write(root, files):
    """Files by path, with their text."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
