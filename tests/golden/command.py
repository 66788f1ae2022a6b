"""The command line of the references: writes golden vectors, or derives stored ones again and compares."""
import argparse
import json
import os


def run(description, vectors, seed):
    """`vectors(seed)` gives one object for each file, which has the name of its codec; `seed` is that of the stored ones."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--seed", type=int, default=seed, help="default: that of the stored files, %(default)s")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", metavar="FOLDER", help="write the files there")
    what.add_argument("--check", metavar="FOLDER", help="compare with the files there; exit status 1 if one differs")
    args = parser.parse_args()
    different = False
    for made in vectors(args.seed):
        name = made["codec"].replace("-", "_") + ".json"
        text = json.dumps(made, separators=(",", ":")) + "\n"
        if args.out:
            with open(os.path.join(args.out, name), "w") as file:
                file.write(text)
        else:
            with open(os.path.join(args.check, name)) as file:
                same = file.read() == text
            print(f"{name}: {'same' if same else 'DIFFERENT'}")
            different |= not same
    raise SystemExit(1 if different else 0)
