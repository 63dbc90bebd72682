"""How tests run podman: with images and settings of their own, without touching those of the user."""

import os
import resource
import shutil
import zlib
from pathlib import Path


def limits():
    """Limits for containers that this process may set: podman's own are too high for a root without CAP_SYS_RESOURCE."""
    kinds = [("nofile", resource.RLIMIT_NOFILE, "fs/nr_open"), ("nproc", resource.RLIMIT_NPROC, "kernel/pid_max")]
    for name, kind, path in kinds:
        most = int((Path("/proc/sys") / path).read_text())
        hard = resource.getrlimit(kind)[1]
        least = most if hard == resource.RLIM_INFINITY else min(hard, most)
        yield f"{name}={least}:{least}"


def settings(home):
    """Environment with podman's settings: its images in the directory `home`, and the network of this machine."""
    home.mkdir(parents=True, exist_ok=True)
    storage, containers = home / "storage.conf", home / "containers.conf"
    # Not in the cache: what it says is no longer true after a restart of the machine.
    running = f"/run/profinfer-{home.name}-{zlib.crc32(bytes(home)):08x}"
    storage.write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{home}/storage"\nrunroot = "{running}"\n')
    # crun refuses cgroups of both versions beside each other.
    runtime = 'runtime = "runc"\n' if shutil.which("runc") else ""
    ulimits = ", ".join(f'"{limit}"' for limit in limits())
    containers.write_text(
        f'[containers]\nnetns = "host"\nlog_driver = "none"\ndefault_ulimits = [{ulimits}]\n'
        f'[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\ntmp_dir = "{running}/libpod"\n{runtime}'
    )
    return {**os.environ, "CONTAINERS_STORAGE_CONF": str(storage), "CONTAINERS_CONF": str(containers)}
