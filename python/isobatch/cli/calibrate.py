"""`isobatch calibrate`: a profile from validators' reports."""

import argparse

from isobatch.cli.tables import show_table
from isobatch.cli.terminal import say, write_json

DESCRIPTION = "Fits a profile, for forecasts, to validator reports."
EXAMPLES = ("isobatch calibrate report.json -o profile.json",)


OPTIONS = {
    "reports": ("a validator's report, or measurements, as JSON", {"nargs": "+", "metavar": "REPORT"}),
    "-o/--output FILE": ("write the profile here, as JSON", {"required": True}),
    "--merge FILE": "an older profile to merge with",
    "--json": "print the profile as JSON",
}


def run(args: argparse.Namespace) -> int:
    """Writes the profile and prints its constants; stderr names those not identified."""
    from isobatch.files.whole import check_json
    from isobatch.forecast.calibrate import calibrate
    from isobatch.forecast.measurements import load_measurements
    from isobatch.forecast.profile import Profile

    check_json(args.output)
    older = None if args.merge is None else Profile.load(args.merge)
    profile = calibrate([load_measurements(path) for path in args.reports], older=older, names=args.reports)
    profile.save(args.output)
    if args.json:
        write_json(profile)
    else:
        rows = []
        for name, c in profile.constants().items():
            error = "" if c.error is None else f"± {c.error:.2g}"
            rows.append((name, f"{c.value:.4g}", error, "estimated" if c.estimated else ""))
        show_table(("constant", "value", "95 %", ""), rows)
        print(f"measured configurations lie within ± {profile.scatter:.1%} of the model")
    if profile.unidentified:
        say(f"not identified: {', '.join(profile.unidentified)}")
    return 0
