"""What services are called, from control groups, environments and command lines as they are met."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recording import AGENT

from kdiff.agent import procfs
from kdiff.agent.errors import AgentError
from kdiff.agent.recording import Options
from kdiff.agent.service_names import OTHER, Services, facts_of
from kdiff.agent.services import ENVIRONMENT, LONGEST, UNKNOWN, Facts, Program, command_name, service_of

ID = "b08acd44196c2da768f48f14b1a0adea" * 2
UID = "12345678-9abc-def0-1234-56789abcdef0"
U_ID = UID.replace("-", "_")
K8S = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
SERVE = Program("python3.12", ["/opt/venv/bin/python", "-u", "/srv/serve.py", "--port", "80"])
BASH = Program("bash", ["-bash"])
HOST = "gpu-17"


def named(
    cgroups: Sequence[str] | str = (),
    environment: Mapping[str, str] | None = None,
    programs: Sequence[Program] = (SERVE,),
    own_hostname: bool = True,
) -> str:
    paths = [cgroups] if isinstance(cgroups, str) else cgroups
    hosts = frozenset({"gpu-17.example.org", HOST})
    return service_of(Facts(paths, environment or {}, programs, hosts, own_hostname))


KUBELET = [
    # systemd driver: containerd, CRI-O, guaranteed, a container in a group of its own, kind, the agent in a namespace
    f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{U_ID}.slice/cri-containerd-{ID}.scope",
    f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{U_ID}.slice/crio-{ID}.scope",
    f"/kubepods.slice/kubepods-pod{U_ID}.slice/crio-{ID}.scope/container",
    f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{U_ID}.slice/cri-containerd-{ID}.scope",
    f"/docker/{ID}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{U_ID}.slice/cri-containerd-{ID}.scope",
    f"/../../kubepods-burstable-pod{U_ID}.slice/cri-containerd-{ID}.scope",
    # containerd's groups of version 1, where it is a unit itself
    f"/system.slice/containerd.service/kubepods-burstable-pod{U_ID}.slice:cri-containerd:{ID}",
    # cgroupfs driver, and a static pod, whose uid is a hash
    f"/kubepods/burstable/pod{UID}/{ID}",
    f"/kubepods/pod{UID}/{ID}",
    f"/kubepods/besteffort/pod{ID[:32]}/{ID}",
    f"/kubepods/pod{UID}",
]


@pytest.mark.parametrize("cgroup", KUBELET)
def test_a_pod_is_called_by_what_controls_it(cgroup: str) -> None:
    assert named(cgroup, {**K8S, "HOSTNAME": "inference-7d4b8c9f5d-x7k2p"}) == "inference"


@pytest.mark.parametrize(
    ("pod", "service"),
    [
        ("inference-7d4b8c9f5d-x7k2p", "inference"),  # a Deployment
        ("llama-3-8b-6b9c5d8f7-2xjqw", "llama-3-8b"),
        ("web-2035384211-7c8j9", "web"),  # before Kubernetes 1.8
        ("vllm-0", "vllm"),  # a StatefulSet
        ("llama-3-12", "llama-3"),
        ("dcgm-exporter-x7k2p", "dcgm-exporter"),  # a DaemonSet, a Job
        ("train-28123456-x7k2p", "train"),  # a CronJob
        ("train-worker-3", "train-worker"),  # a PyTorchJob
        ("inference", "inference"),  # a pod of its own, or a host name of its own
        ("batch-abcde", "batch-abcde"),  # vowels are in no suffix
        ("inference-gpu-17", "inference"),  # a file of the host
        ("inference-7d4b8c9f5d-x7k2p.inference.prod.svc.cluster.local", "inference"),
        (f"{'a' * 50}-7d4b8c9f5d-"[:58] + "x7k2p", "a" * 50),  # of a long name the hash is cut off
        (f"{'a' * 57}-x7k2p", "a" * 57),
    ],
)
def test_what_controllers_append_is_no_part_of_the_name(pod: str, service: str) -> None:
    assert named(KUBELET[0], {**K8S, "HOSTNAME": pod}) == service


def test_what_else_tells_of_a_pod() -> None:
    pod = {**K8S, "HOSTNAME": "inference-00003-deployment-7d4b8c9f5d-x7k2p"}
    assert named(KUBELET[0], {**pod, "K_SERVICE": "inference"}) == "inference"
    # On the host's network it has the host's name: as the container's main program it is the same on every host.
    tini, sh = Program("tini", ["/usr/bin/tini", "--", "sh"]), Program("bash", ["bash", "/entrypoint.sh"])
    worker = Program("python3.12", ["/usr/bin/python3", "-c", "from multiprocessing.spawn import spawn_main"])
    for environment, own in (
        ({**K8S, "HOSTNAME": HOST}, True),
        ({**K8S, "HOSTNAME": "any"}, False),
        ({}, True),
    ):
        assert named(KUBELET[0], environment, [worker, SERVE, sh, tini], own) == "serve"
    assert named(KUBELET[0], {"HOSTNAME": HOST, "POD_NAME": "vllm-3"}, own_hostname=False) == "vllm"
    # The pod is hidden by a namespace, the container is not.
    assert named(f"/../cri-containerd-{ID}.scope", {**K8S, "HOSTNAME": "vllm-3"}) == "vllm"


CONTAINERS = [
    f"/system.slice/docker-{ID}.scope",  # systemd driver
    f"/docker/{ID}",  # cgroupfs driver
    f"/machine.slice/libpod-{ID}.scope/container",  # podman
    f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope",  # of a user
    f"/libpod_parent/libpod-{ID}",
    f"/system.slice/nerdctl-{ID}.scope",
    f"/default/{ID}",  # containerd
    f"/system.slice/crio-{ID}.scope",
    f"/ecs/0123456789abcdef/{ID}",
]


@pytest.mark.parametrize("cgroup", CONTAINERS)
def test_a_container_is_called_by_its_own_host_name_or_its_program(cgroup: str) -> None:
    assert named(cgroup, {"HOSTNAME": "inference"}) == "inference"
    assert named(cgroup, {"HOSTNAME": "worker-3"}) == "worker-3"
    assert named(cgroup, {"HOSTNAME": ID[:12]}) == "serve"
    assert named(cgroup, {"HOSTNAME": HOST}) == "serve"
    assert named(cgroup, {}, [Program("tritonserver"), Program("dumb-init")]) == "tritonserver"


@pytest.mark.parametrize(
    ("cgroup", "service"),
    [
        ("/system.slice/inference.service", "inference"),
        ("/system.slice/system-worker.slice/worker@3.service", "worker@3"),
        ("/system.slice/inference.service/payload", "inference"),
        (r"/system.slice/llm\x2dserver.service", "llm-server"),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/inference.service", "inference"),
        ("/system.slice/training.scope", "training"),  # systemd-run --scope --unit=training
        ("/machine.slice/systemd-nspawn@inference.service/payload", "inference"),
        ("/machine.slice/systemd-nspawn@inference.service/payload/init.scope", "inference"),
        ("/machine.slice/systemd-nspawn@box.service/payload/system.slice/inference.service", "inference"),
        (r"/machine.slice/machine-gpu\x2dbox.scope", "gpu-box"),
        ("/lxc.payload.inference", "inference"),
        ("/lxc/inference", "inference"),
        (f"/nomad.slice/share.slice/{UID}.inference.scope", "inference"),
        (f"/nomad.slice/{UID}.inference-{ID[:12]}.scope", "serve"),
        # Programs that are no service of the unit's: sessions, terminals, cron, runtimes
        ("/user.slice/user-1000.slice/session-4.scope", "serve"),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/app-Terminal.slice/vte-spawn-1-2.scope", "serve"),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome-code-1234.scope", "serve"),
        ("/user.slice/user-1000.slice/user@1000.service/init.scope", "serve"),
        ("/user.slice/user-0.slice/user@0.service/tmux-spawn-0-1.scope", "serve"),
        ("/system.slice/run-u12.service", "serve"),
        (f"/system.slice/run-r{ID[:32]}.scope", "serve"),
        ("/system.slice/run-p123-i456.scope", "serve"),
        ("/system.slice/cron.service", "serve"),
        (f"/user.slice/user-0.slice/user@0.service/app.slice/snap.code.code-{UID}.scope", "serve"),
        (f"/system.slice/job-{ID[:16]}.service", "serve"),
        ("/user.slice/user-0.slice/user@0.service/user.slice/apptainer-4242.scope", "serve"),
        ("/pbs_jobs.service/jobid/12.server", "serve"),
        ("/system.slice/deadbeef-cafe.service", "deadbeef-cafe"),
        ("/system.slice/ssh.service", "serve"),
        ("/system.slice/docker.service", "serve"),
        ("/system.slice/system-getty.slice/getty@tty1.service", "serve"),
        ("/", "serve"),
        ("/torn.slice", "serve"),
    ],
)  # fmt: skip
def test_units_and_machines(cgroup: str, service: str) -> None:
    assert named(cgroup, {"HOSTNAME": "somewhere"}, [SERVE, BASH]) == service


@pytest.mark.parametrize(
    "cgroups",
    [
        ["/slurm/uid_1000/job_1234/step_0/task_3"],
        ["/system.slice/slurmstepd.scope/job_1234/step_0/user/task_0"],
        ["/system.slice/slurmd.service", "/slurm/uid_1000/job_1234/step_batch"],
    ],
)
def test_jobs_of_slurm(cgroups: list[str]) -> None:
    assert named(cgroups, {"SLURM_JOB_NAME": "finetune"}) == "finetune"
    for none in ("", "interactive", "bash", "python3", "wrap"):
        assert named(cgroups, {"SLURM_JOB_NAME": none}) == "serve"
    assert named("/system.slice/inference.service", {"SLURM_JOB_NAME": "finetune"}) == "inference"


def test_the_first_path_that_tells_is_believed() -> None:
    assert named(["/", f"/docker/{ID}"], {"HOSTNAME": "inference"}) == "inference"
    assert named(["/system.slice/a.service", "/system.slice/b.service"]) == "a"


@pytest.mark.parametrize("cgroup", [KUBELET[0], CONTAINERS[0], "/system.slice/inference.service", "/"])
def test_what_the_process_says_goes_before_all_else(cgroup: str) -> None:
    said = {"KDIFF_SERVICE": "mine", "OTEL_SERVICE_NAME": "otel", "HOSTNAME": "pod", "K_SERVICE": "knative"}
    assert named(cgroup, said) == "mine"
    assert named(cgroup, {**said, "KDIFF_SERVICE": " \t"}) == "otel"
    assert named(cgroup, {**said, "KDIFF_SERVICE": " a\x1b[2Jb\n\udcff "}) == "a?[2Jb??"
    assert named(cgroup, {**said, "KDIFF_SERVICE": "é" * 5000}) == "é" * LONGEST


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("./workload --launches 3", "workload"),
        ("/usr/bin/tritonserver --model-store /m", "tritonserver"),
        ("python serve.py --port 80", "serve"),
        ("/usr/bin/python3.12 -u -X dev -W ignore /srv/serve.py", "serve"),
        ("python3 -Xdev -Wignore -OO serve.py -m x", "serve"),
        ("python3 --check-hash-based-pycs always serve.py", "serve"),
        ("python3 -m vllm.entrypoints.openai.api_server --model m", "vllm.entrypoints.openai.api_server"),
        ("python3 -um serving.__main__", "serving"),
        ("python3 -mserving x.py", "serving"),
        ("python3 /opt/app/__main__.py", "app"),
        ("/usr/bin/python3 /usr/local/bin/vllm serve model.py", "vllm"),
        ("torchrun --nproc-per-node=8 --standalone train.py --epochs 3", "train"),
        ("torchrun --nproc-per-node 8 -m trainer.main", "trainer.main"),
        ("python -m torch.distributed.run --nnodes 2 train.py", "train"),
        ("/usr/bin/python3 /usr/local/bin/torchrun train.py", "train"),
        ("accelerate launch --config_file c.yaml finetune.py", "finetune"),
        ("python -m accelerate.commands.launch finetune.py", "finetune"),
        ("deepspeed --num_gpus 8 train.py", "train"),
        ("torchrun --help", "torchrun"),
        ("bash run.sh", "run.sh"),
        ("sh -c python", ""),
        ("-bash", ""),
        ("python3 -c import+torch", ""),
        ("python3 -", ""),
        ("python3", ""),
        ("", ""),
    ],
)
def test_what_a_command_line_runs(command: str, name: str) -> None:
    assert command_name(command.split()) == name


@pytest.mark.parametrize(
    ("programs", "name"),
    [
        # A piece of another program, and a title in place of the arguments
        ([Program("python3.12", ["python3", "-c", "from multiprocessing.spawn import main"]), SERVE, BASH], "serve"),
        ([Program("python3.12", ["VLLM::EngineCore"]), SERVE, BASH], "serve"),
        ([Program("python3.12", ["VLLM::Worker_TP0"]), Program("python3.12", ["VLLM::EngineCore"])], "VLLM"),
        ([Program("python3.12", ["gunicorn: worker [app]"])], "gunicorn"),
        ([Program("python3.12", ["python3", "-c", "x"]), BASH, SERVE], "python3.12"),  # what a shell ran ends there
        ([Program("tritonserver", ["a title"]), SERVE], "tritonserver"),
        ([Program("", ["/opt/hidden/server"])], "server"),
        ([Program()], UNKNOWN),
        ([], UNKNOWN),
    ],
)
def test_what_a_process_runs(programs: list[Program], name: str) -> None:
    assert named("/user.slice/user-0.slice/session-1.scope", {}, programs) == name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/bin/python3 serve.py", "serve"),
        ("./workload --launches 3", "workload"),
        ("python3 -c x", "python3"),
        ("sh -c x", "sh"),
        ("odd\udcff", "odd?"),
    ],
)
def test_a_recorded_command_is_called_by_itself_unless_its_environment_or_an_option_says(
    monkeypatch: pytest.MonkeyPatch, command: str, name: str
) -> None:
    for variable in ENVIRONMENT:
        monkeypatch.delenv(variable, raising=False)
    options = Options(Path("x"), command.split())
    assert options.service_name == name
    monkeypatch.setenv("HOSTNAME", "pod")
    assert options.service_name == name
    monkeypatch.setenv("KDIFF_SERVICE", "mine")
    assert options.service_name == "mine"
    assert replace(options, service="said \udcff").service_name == "said ?"
    assert replace(options, service=" a\x1b[31mb\n\tc\x00 ").service_name == "a?[31mb??c?"
    assert replace(options, service="x" * 5_000).service_name == "x" * 100
    assert replace(options, service="").service_name == "mine"
    with pytest.raises(AgentError, match="--service is blank: name the service, or leave the option out"):
        assert replace(options, service=" \n").service_name
    assert Options(Path("x")).service_name == Options(Path("x"), pids=frozenset({1})).service_name == ""


@pytest.mark.parametrize("name", ["HOSTNAME", "KDIFF_SERVICE", "SLURM_JOB_NAME"])
@pytest.mark.parametrize("text", ["a-" * 500_000, "4" * 1_000_000, "a-bcdfg" * 150_000, " " * 1_000_000])
def test_no_text_takes_long(name: str, text: str) -> None:
    """The recording reads nothing meanwhile."""
    for cgroup in (KUBELET[0], CONTAINERS[0], "/job_1", f"/app-{'-1' * 120}x.service", f"/{'x.service/' * 400}"):
        began = time.process_time()
        named(cgroup, {name: text, **K8S}, [Program("python3", ["python3", *["-W"] * 1000])] * 16)
        assert time.process_time() - began < 0.1


TEXTS = st.text(max_size=300) | st.sampled_from(["/", "-m", "python3", "torchrun", "a.py", "sh", "-", "x" * 5000])
PATHS = st.lists(st.sampled_from([*KUBELET, *CONTAINERS, "/a.service", "/lxc/", "/job_1", "/machine-.scope"]) | TEXTS)


@given(
    PATHS,
    st.dictionaries(st.sampled_from(sorted(ENVIRONMENT)), TEXTS),
    st.lists(st.builds(Program, TEXTS, st.lists(TEXTS, max_size=5)), max_size=4),
    st.frozensets(TEXTS, max_size=3),
    st.booleans(),
)
def test_any_facts_give_a_name(
    cgroups: list[str], environment: dict[str, str], programs: list[Program], hosts: frozenset[str], own: bool
) -> None:
    name = service_of(Facts(cgroups, environment, programs, hosts, own))
    assert 0 < len(name) <= LONGEST
    assert name.isprintable()
    assert name == name.strip()
    name.encode()


# Of real processes

TITLED = """
import os, sys, time
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
begin, end = int(fields[45]), int(fields[48])  # from the arguments to the end of the environment
with open("/proc/self/mem", "r+b", buffering=0) as memory:
    memory.seek(begin)
    memory.write(b"served: worker".ljust(end - begin, b"\\0"))
print("up", flush=True)
time.sleep(60)
"""


@contextmanager
def started(*command: str, env: Mapping[str, str] | None = None) -> Iterator[int]:
    with subprocess.Popen(command, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def test_a_real_process(tmp_path: Path) -> None:
    script = tmp_path / "a server.py"
    script.write_text("print('up', flush=True); import time; time.sleep(60)")
    with started(sys.executable, str(script), env={"OTEL_SERVICE_NAME": "x"}) as pid:
        facts = facts_of(pid)
    assert facts.environment["OTEL_SERVICE_NAME"] == "x"
    assert facts.environment.keys() <= ENVIRONMENT
    assert facts.cgroups == procfs.cgroups(os.getpid())
    assert command_name(facts.programs[0].arguments) == "a server"
    assert facts.programs[1].arguments == procfs.arguments(os.getpid())
    assert facts.own_hostname == procfs.own_hostname(os.getpid())
    assert os.uname().nodename in facts.hosts


def test_a_process_that_wrote_its_title_over_its_environment_is_what_its_parent_says() -> None:
    """As setproctitle does."""
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {TITLED!r}])"
    with started(sys.executable, "-c", code, env={"KDIFF_SERVICE": "of the parent"}) as parent:
        (child,) = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        assert procfs.environment(int(child), ENVIRONMENT) is None
        assert procfs.arguments(int(child))[0].startswith("served: worker")
        assert service_of(facts_of(int(child))) == "of the parent"
        os.kill(int(child), 9)


def test_a_process_whose_first_thread_has_ended_is_what_its_others_say() -> None:
    end_first = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start()"
    code = f"{end_first}; print('up', flush=True); ctypes.CDLL(None).pthread_exit(None)"
    with started(sys.executable, "-c", code, env={"KDIFF_SERVICE": "chat"}) as pid:
        while (found := procfs.stat(pid)) is not None and found.state != "Z":
            time.sleep(0.01)
        assert service_of(facts_of(pid)) == "chat"


def test_a_process_that_is_gone() -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    while os.path.exists(f"/proc/{ended.pid}"):
        time.sleep(0.01)
    assert service_of(facts_of(ended.pid)) == UNKNOWN


def test_an_empty_environment_is_nobody_elses() -> None:
    with started("env", "-i", sys.executable, "-c", "print('up', flush=True); import time; time.sleep(60)") as pid:
        assert procfs.environment(pid, ENVIRONMENT) == {}


# Over time


class Known:
    """Services whose facts are what a test says."""

    def __init__(self, fixed: str = "", most: int = 200) -> None:
        self.said: list[str] = []
        self.names: dict[int, str] = {}
        self.services = Services(
            fixed, self.said.append, lambda pid: Facts(environment={"KDIFF_SERVICE": self.names[pid]}), most
        )

    def decide(self, pid: int, name: str, since_ns: int) -> None:
        self.names[pid] = name
        self.services.decide(pid, since_ns)


def test_exec_begins_a_name_and_the_one_before_stays_for_its_time() -> None:
    known = Known()
    known.decide(7, "a", 1000)
    known.decide(7, "a", 2000)
    known.decide(7, "b", 3000)
    assert known.services.periods(7) == [(1000, "a"), (3000, "b")]
    assert [known.services.at(7, ns) for ns in (0, 1000, 2999, 3000, 9999)] == ["a", "a", "a", "b", "b"]
    assert known.services.periods(8) == [(0, UNKNOWN)]
    known.services.forget(7)
    assert known.services.at(7, 5000) == UNKNOWN


def test_names_follow_each_other_also_where_the_later_one_is_told_by_an_earlier_call() -> None:
    known = Known()
    known.decide(7, "a", 1000)
    known.decide(7, "b", 3000)
    known.decide(7, "c", 2000)
    assert known.services.periods(7) == [(1000, "a"), (3000, "b"), (3000, "c")]
    assert [known.services.at(7, ns) for ns in (2999, 3000)] == ["a", "c"]


def test_what_is_lost_around_an_exec_may_be_either_names() -> None:
    known = Known()
    assert known.services.of_losses(7) == ""
    known.decide(7, "a", 1000)
    assert known.services.of_losses(7) == "a"
    known.decide(7, "b", 2000)
    assert known.services.of_losses(7) == ""
    known.services.losses_read()
    assert known.services.of_losses(7) == "b"


def test_one_name_for_all_is_asked_of_nobody() -> None:
    services = Services("one", facts=lambda pid: pytest.fail("asked"))
    services.decide(7, 1000)
    assert services.names == {"one"}
    assert (services.periods(7), services.at(7, 5), services.of_losses(9)) == ([(0, "one")], "one", "one")


def test_names_are_bounded_and_make_room_when_no_process_has_had_them_for_a_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    known = Known(most=3)
    for pid in range(5):
        known.decide(pid, f"s{pid}", 0)
    assert [known.services.at(pid, 1) for pid in range(5)] == ["s0", "s1", "s2", OTHER, OTHER]
    assert len(known.said) == 2
    assert known.said[0].startswith("there are 3 services on this host: further ones are called other; name them all")
    assert known.services.names == {"s0", "s1", "s2", OTHER, UNKNOWN}
    known.services.forget(0)  # it has ended
    now += 86_000
    known.decide(5, "s5", 0)
    assert known.services.at(5, 1) == OTHER
    now += 1000
    known.decide(6, "s6", 0)
    known.decide(7, "s7", 0)
    assert [known.services.at(pid, 1) for pid in (1, 2, 6, 7)] == ["s1", "s2", "s6", OTHER]
    assert known.services.names == {"s1", "s2", "s6", OTHER, UNKNOWN}
    known.decide(8, "s1", 0)
    assert known.services.at(8, 1) == "s1"


@pytest.mark.ebpf
def test_an_option_that_is_no_name_is_made_one_and_said(tmp_path: Path) -> None:
    command = [AGENT, "record", "-o", str(tmp_path / "capture"), "--service", "a\x1b[31mb", "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "the service is called a?[31mb: names are of 1 to 100 printable characters" in done.stderr
    health = pq.read_table(tmp_path / "capture" / "agent_health")
    assert set(health["service"].to_pylist()) == {"a?[31mb"}
