"""Runs each container of a manifest as Kubernetes would, in the file system of the image, one after another.

    kubernetes.py MANIFEST TREE VOLUMES OBJECT [NAME=VALUE...]

Of the object of this name in MANIFEST. TREE is the root folder of the image, VOLUMES a folder with a folder for each
volume; a missing one is made. Assignments replace `${NAME}` in the manifest, arguments that begin with `NAME=`, and
variables. A container that runs for ever ends after it has done its work once. Containers of other images are left
out. Needs root and PyYAML.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import time

import yaml

SECONDS = 120


def pod_of(manifest, name):
    found = next(item for item in yaml.safe_load_all(manifest) if item["metadata"]["name"] == name)
    spec = found["spec"].get("jobTemplate", found)["spec"]
    return spec["template"]["spec"]


def run(container, pod, tree, volumes, values):
    """Run a container in a mount namespace of its own, with its volumes, user and variables."""
    environment = {"PATH": "/usr/local/bin", "HOME": "/home/gridguard", "LD_LIBRARY_PATH": "/usr/local/cuda/lib64"}
    for variable in container.get("env", []):
        environment[variable["name"]] = values.get(variable["name"], variable.get("value", "node7"))
    words = [*container.get("command", []), *container.get("args", [])]
    words = [re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], word) for word in words]
    replaced = {name: f"{name}={value}" for name, value in values.items() if name.startswith("--")}
    words = [replaced.get(word.split("=")[0], word) for word in words]
    script = ["set -eu"]
    for mount in container["volumeMounts"]:
        source, target = volumes / mount["name"], tree / mount["mountPath"].lstrip("/")
        source.mkdir(exist_ok=True)
        target.mkdir(parents=True, exist_ok=True)
        mode = "ro" if mount.get("readOnly") else "rw"
        script.append(f"mount --bind '{source}' '{target}' && mount -o remount,bind,{mode} '{target}'")
    for name in ("proc", "dev"):
        (tree / name).mkdir(exist_ok=True)
        script.append(f"mount --rbind /{name} '{tree}/{name}'")
    user = pod["securityContext"]
    script.append(f"exec chroot --userspec={user['runAsUser']}:{user['runAsGroup']} '{tree}' \"$@\"")
    started = ["unshare", "--mount", "sh", "-c", "; ".join(script), "sh", *words]
    print("--", container["name"] + ":", *words, flush=True)
    environment["PATH"] += ":/usr/sbin:/usr/bin:/sbin:/bin"
    runs_for_ever = any(word.startswith("--every") for word in words)
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(started, env=environment, stderr=errors)
        said, end = "", time.monotonic() + SECONDS
        # Its first line on standard error says what it has done.
        while process.poll() is None and time.monotonic() < end and not (runs_for_ever and "\n" in said):
            time.sleep(0.1)
            errors.seek(0)
            said = errors.read()
        process.terminate()
        process.wait()
        errors.seek(0)
        said = errors.read()
    print(said, end="")
    has_done = re.search(r"\bnew$|pushed$", said, re.MULTILINE) if runs_for_ever else process.returncode == 0
    if not has_done:
        sys.exit(f"{container['name']}: exit code {process.returncode}")


def main():
    manifest, tree, volumes, name, *assignments = sys.argv[1:]
    values = dict(one.split("=", 1) for one in assignments)
    text = re.sub(r"\$\{(\w+)\}", lambda found: values[found[1]], pathlib.Path(manifest).read_text())
    pod = pod_of(text, name)
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        if container["image"] == values["GRIDGUARD_IMAGE"]:
            run(container, pod, pathlib.Path(tree), pathlib.Path(volumes), values)


if __name__ == "__main__":
    main()
