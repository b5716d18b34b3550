#!/usr/bin/env python3
"""Measures `karp simulate` as users run it on Karpenter's benchmark and the mixes on 1,204 EC2 types, and has each answer judged.

usage: cargo build --release -p karp && python3 sandbox/tools/bench/simulate.py target/release/karp DIR
DIR holds the inputs with their judge, check_solution.py, and gen_cluster.py (what `KARP_BENCH` names for the benchmarks).

A row an input: `solveSeconds` beside (wall time of 21 solutions - wall time of one) / 20, which is what a solution takes seen from outside;
the judge's verdict and price over its lower bound; the peak of the process's memory. Exits with 1 on a fault."""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

EC2 = {"CT": "on-demand", "CATS": "c,m,r", "ARCH": "amd64"}
POOL = """apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: default}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      requirements:
      - {key: karpenter.k8s.aws/instance-category, operator: In, values: [c, m, r]}
      - {key: kubernetes.io/arch, operator: In, values: [amd64]}
      - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
"""
INPUTS = ["ec2-plain-3000", "ec2-diverse-2000", "ec2-spreadheavy-1500", "diverse-500", "diverse-2000", "diverse-5000", "diverse-10000", "preference-4000"]
MANY = 21
# pairs of runs of which the median counts: other work on the machine disturbs single ones
PAIRS = 5
LOAD = ["1", "100000", "200", "5000"]


def run(karp, files, types, repeat):
    """Answers what karp says, the wall time, and the peak of its memory in MiB."""
    command = [karp, "simulate", "-f", *files, "--instance-types", types, "--repeat", str(repeat), "-o", "json"]
    with tempfile.TemporaryFile("w+") as said:
        begin = time.monotonic()
        process = subprocess.Popen(command, stdout=said)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - begin
        if os.waitstatus_to_exitcode(status) not in (0, 2):
            sys.exit(f"{' '.join(command)}: exit {os.waitstatus_to_exitcode(status)}")
        said.seek(0)
        return json.load(said), wall, usage.ru_maxrss / 1024


def judged(folder, pods, types, answer, settings):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(answer, file)
        file.flush()
        command = [sys.executable, folder / "check_solution.py", pods, types, file.name]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **settings})
    verdict = json.loads(done.stdout)
    met, wished = map(int, verdict["node_preferences_met"].split("/"))
    return done.returncode == 0 and met == wished, verdict


def main():
    karp, folder = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2])
    good = True
    print("| input | solveSeconds: min | median | seen from outside | over the median | peak MiB | nodes | over fluid bound | preferences met | faults |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        pool = pathlib.Path(scratch) / "pool.yaml"
        pool.write_text(POOL)
        for name in INPUTS:
            on_ec2 = name.startswith("ec2-")
            pods = folder / f"{name}.json.gz"
            types = folder / ("ec2-types.json.gz" if on_ec2 else "instance-types.json.gz")
            files = [str(pods), str(pool)] if on_ec2 else [str(pods)]
            outside, inside = [], []
            for _ in range(PAIRS):
                _, one, _ = run(karp, files, str(types), 1)
                answer, many, peak = run(karp, files, str(types), MANY)
                outside.append((many - one) / (MANY - 1))
                inside.append(answer["solveSeconds"])
            seen, median = statistics.median(outside), statistics.median(each["median"] for each in inside)
            least = min(each["min"] for each in inside)
            fair, verdict = judged(folder, pods, types, answer, EC2 if on_ec2 else {})
            good = good and fair and not answer["unschedulable"]
            print(f"| {name} | {least:.4f} | {median:.4f} | {seen:.4f} | {seen / median:.2f} | {peak:.0f} | {len(answer['nodeClaims']):,} | "
                  f"{verdict['ratio']:.3f} | {verdict['node_preferences_met']} | {'none' if fair else verdict} |", flush=True)
        cluster = pathlib.Path(scratch) / "cluster.json"
        with cluster.open("w") as file:
            subprocess.run([sys.executable, folder / "gen_cluster.py", *LOAD], stdout=file, check=True)
        answer, wall, peak = run(karp, [str(cluster)], str(folder / "ec2-types.json.gz"), 1)
        placed, new = len(answer["placements"]), sum(len(claim["pods"]) for claim in answer["nodeClaims"])
        print(f"\ngen_cluster.py {' '.join(LOAD)}: solved in {answer['solveSeconds']['min']:.3f} s; {wall:.2f} s with reading and printing, peak {peak:.0f} MiB; "
              f"{placed:,} pods on nodes that exist, {new:,} on {len(answer['nodeClaims']):,} new ones, {len(answer['unschedulable']):,} refused")
        good = good and placed + new + len(answer["unschedulable"]) == int(LOAD[1])
    sys.exit(0 if good else 1)


main()
