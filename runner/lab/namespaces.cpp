#include "runner/lab/namespaces.hpp"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <ranges>
#include <thread>

#include "core/environment.hpp"
#include "core/error.hpp"
#include "core/program.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "runner/launch/binding.hpp"
#include "runner/launch/job_folder.hpp"
#include "topologies/token_bucket.hpp"

namespace stepcast {
namespace {

/// Path of `ip` or `tc`, which are in folders that only root has in PATH.
std::string network_program(const std::string& name) {
  if (std::string found = find_program(name); !found.empty()) return found;
  for (const char* folder : {"/usr/sbin/", "/sbin/"})
    if (::access((folder + name).c_str(), X_OK) == 0) return folder + name;
  throw CapabilityError("the lab needs '" + name + "' of iproute2 (Debian: apt-get install iproute2)");
}

/// Output of `ip` or `tc`. \throws RunError with its message
std::string call(const std::string& program, const std::vector<std::string>& words) {
  std::vector<std::string> all{network_program(program)};
  all.insert(all.end(), words.begin(), words.end());
  const ProgramOutput output = run_program_file(all);
  if (output.exit_code == 0) return output.standard_output;
  throw RunError("'" + program + " " + joined(words, " ") + "' failed: " + output.standard_error);
}

/// Runs lines of `ip` or `tc` in one go, inside a namespace unless `space` is empty.
void call_batch(const std::string& program, const std::string& space, const std::string& lines) {
  const JobFolder folder;  // in which nobody else can put a link
  const std::string file = folder.path() + "/batch";
  std::ofstream(file) << lines;
  std::vector<std::string> words;
  if (!space.empty()) words = {"-n", space};
  words.insert(words.end(), {"-batch", file});
  try {
    call(program, words);
  } catch (const RunError& error) {
    throw RunError(std::string(error.what()) + "in: " + lines);
  }
}

std::vector<std::string> spaces_of(const std::string& lab) {
  const std::string prefix = lab_prefix(lab);
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(kNamespaceFolder, none))
    if (const std::string name = entry.path().filename(); name.starts_with(prefix)) names.push_back(name);
  std::ranges::sort(names);
  return names;
}

std::vector<int> processes_in(const std::string& space) {
  return transformed(words_in(call("ip", {"netns", "pids", space})),
                     [](const std::string& process) { return std::stoi(process); });
}

std::vector<int> processes_of(const std::string& lab) {
  std::vector<int> all;
  for (const std::string& space : spaces_of(lab)) {
    const std::vector<int> some = processes_in(space);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

void end_processes(const std::string& lab) {
  using std::chrono::milliseconds;
  constexpr int kPatience = 40;
  constexpr milliseconds kPause{50};
  for (const int signal : {SIGTERM, SIGKILL}) {
    for (const int process : processes_of(lab)) ::kill(process, signal);
    for (int i = 0; i < kPatience && !processes_of(lab).empty(); ++i) std::this_thread::sleep_for(kPause);
  }
}

std::string whole(double value) { return std::to_string(std::llround(value)); }

/// Queue of one end, first in, first out. It is short if TCP may not fill it (`set_up_tcp`). It has 2 MiB, as
/// switches with deep buffers, so that in-cast traffic waits and is not lost.
std::string shaping(const std::string& interface, BytesPerSecond payload, const TokenBuckets& buckets) {
  constexpr int kQueue = 2 << 20;
  return "qdisc add dev " + interface + " root tbf rate " + whole(8.0 * shaped_rate(payload).count()) +
         "bit burst " + whole(buckets.depth(payload).count()) + " limit " + std::to_string(kQueue) + "\n";
}

/// Sets TCP of the hosts, independent of this machine's settings, to Reno, which every namespace may use: it
/// fills its window and waits for acknowledgements. BBR, the default of some machines, paces by the observed
/// rate: a ring of all_reduce, whose hosts wait for each other, stays 10 % below its links' rate. If ports
/// are fair, it also bounds the data of one connection in a host's own queue. Most hosts have a fair queue
/// there (fq_codel), in which a short message does not wait behind a long one of another connection. Kernels
/// of small machines often lack it, so TCP must not fill a queue without such order.
void set_up_tcp(const LabPlan& plan, Bytes segment) {
  std::string settings = "cd /proc/sys/net/ipv4 && echo reno > tcp_congestion_control";
  if (plan.queue == Queue::kFair)
    settings += " && echo " + whole(3.0 * segment.count()) + " > tcp_limit_output_bytes";
  for (const LabHost& host : plan.hosts) call("ip", {"netns", "exec", host.space, "sh", "-c", settings});
}

void make_spaces(const LabPlan& plan) {
  std::string spaces;
  for (const LabHost& host : plan.hosts) spaces += "netns add " + host.space + "\n";
  call_batch("ip", "", spaces);
  std::string links;
  for (const LabLink& link : plan.links)
    links += "link add name " + link.a.interface + " netns " + link.a.space + " type veth peer name " +
             link.b.interface + " netns " + link.b.space + "\n";
  if (!links.empty()) call_batch("ip", "", links);
}

/// Aliases describe for `lab_status` and `lab_hosts` what was built; that of the switches is set last, after
/// all is done. No IPv6 addresses, because their announcements would add traffic.
void start_interfaces(const LabPlan& plan) {
  std::string switches;
  for (const std::string& bridge : plan.bridges)
    switches += "link add " + bridge + " type bridge stp_state 0 mcast_snooping 0\nlink set " + bridge +
                " addrgenmode none up\n";
  std::string queues;
  const TokenBuckets buckets(plan.slowest_link);
  for (const LabLink& link : plan.links)
    for (const LabEnd& end : {link.a, link.b}) {
      if (end.bridge < 0) {
        call_batch("tc", end.space, shaping(end.interface, link.bandwidth, buckets));
        continue;
      }
      switches +=
          "link set " + end.interface + " addrgenmode none master " + plan.bridges[end.bridge] + " up\n";
      queues += shaping(end.interface, link.bandwidth, buckets);
    }
  if (!switches.empty()) call_batch("ip", plan.switches, switches);
  if (!queues.empty()) call_batch("tc", plan.switches, queues);
  for (const LabHost& host : plan.hosts)
    call_batch("ip", host.space,
               "link set lo alias " + host.name + "@" + std::to_string(host.speed) +
                   " up\nlink set eth0 addrgenmode none gso_max_size " + whole(buckets.segment().count()) +
                   " up\naddr add " + host.address + "/24 dev eth0\n");
  set_up_tcp(plan, buckets.segment());
  constexpr std::size_t kLongestAlias = 255;
  call("ip", {"-n", plan.switches, "link", "set", "lo", "alias", plan.cluster.substr(0, kLongestAlias)});
}

/// Output of `ip -j KIND show dev INTERFACE`; null if there is no such namespace or interface.
nlohmann::json description(const std::string& space, const char* kind, const std::string& interface) {
  try {
    return nlohmann::json::parse(call("ip", {"-n", space, "-j", kind, "show", "dev", interface})).at(0);
  } catch (const RunError&) {
    return nullptr;
  }
}

/// The alias that `start_interfaces` set on the loopback interface; "" if it did not get so far.
std::string alias(const std::string& space) {
  const nlohmann::json link = description(space, "link", "lo");
  return link.is_object() ? link.value("ifalias", "") : "";
}

/// `eth0 up, sends at most 123.0 MB/s`
std::vector<std::string> links_of(const std::string& space) {
  std::map<std::string, double> rates;
  for (const auto& queue : nlohmann::json::parse(call("tc", {"-n", space, "-j", "qdisc", "show"})))
    if (queue.value("kind", "") == "tbf") rates[queue.value("dev", "")] = queue["options"].value("rate", 0.0);
  std::vector<std::string> lines;
  for (const auto& link : nlohmann::json::parse(call("ip", {"-n", space, "-j", "link", "show"}))) {
    const std::string name = link.value("ifname", "");
    if (!rates.contains(name)) continue;
    lines.push_back(name + (link.value("operstate", "") == "UP" ? " up" : " down") + ", sends at most " +
                    to_text(BytesPerSecond(rates[name] / shaped_rate(BytesPerSecond(1.0)).count())));
  }
  return lines;
}

}  // namespace

void require_lab_capabilities() {
  static_cast<void>(network_program("ip"));
  static_cast<void>(network_program("tc"));
  bool allowed = false;
  std::thread([&] { allowed = ::unshare(CLONE_NEWNET) == 0; }).join();  // a namespace of that thread alone
  const char* const folder = std::filesystem::exists(kNamespaceFolder) ? kNamespaceFolder : "/run";
  if (!allowed || ::access(folder, W_OK) != 0)
    throw CapabilityError(
        "the lab creates network namespaces, which requires root, or CAP_NET_ADMIN and CAP_SYS_ADMIN with "
        "write access to /run/netns");
}

void build_lab(const LabPlan& plan) {
  if (const std::vector<int> processes = processes_of(plan.lab); !processes.empty())
    throw RunError(
        "a lab named '{}' is in use by process {}; end it with 'stepcast lab down', or use another --name",
        plan.lab, processes.front());
  if (!spaces_of(plan.lab).empty())
    throw RunError(
        "a lab named '{0}' exists; remove it with 'stepcast lab down --name {0}', or use another --name",
        plan.lab);
  call("ip", {"netns", "add", plan.switches});  // fails if another process has just begun this lab
  try {
    make_spaces(plan);
    start_interfaces(plan);
  } catch (...) {
    remove_lab(plan.lab);
    throw;
  }
}

int remove_lab(const std::string& lab) {
  const std::vector<std::string> spaces = spaces_of(lab);
  if (spaces.empty()) return 0;
  end_processes(lab);
  std::string lines;
  for (const std::string& space : spaces) lines += "netns delete " + space + "\n";
  call_batch("ip", "", lines);
  return static_cast<int>(spaces.size());
}

std::string lab_status(const std::string& lab) {
  const std::vector<std::string> spaces = spaces_of(lab);
  if (spaces.empty()) return "lab '" + lab + "': there is none\n";
  const std::string cluster = alias(lab_prefix(lab) + "-switches");
  std::string text = fmt::format("lab '{}': {}\n", lab,
                                 cluster.empty() ? "unfinished, 'stepcast lab down' removes it" : cluster);
  for (const std::string& space : spaces) {
    const std::vector<int> processes = processes_in(space);
    text += space + (processes.empty() ? "" : ", processes ") + joined(processes, " ") + "\n";
    for (const std::string& link : links_of(space)) text += "  " + link + "\n";
  }
  return text;
}

std::vector<LabHost> lab_hosts(const std::string& lab) {
  const std::string switches = lab_prefix(lab) + "-switches";
  if (alias(switches).empty())
    throw RunError(
        "there is no lab named '{}': build one with 'stepcast lab up --cluster FILE', or use 'lab run "
        "--cluster FILE' for one run",
        lab);
  std::map<int, LabHost> hosts;  // by the last byte of the address
  for (const std::string& space : spaces_of(lab)) {
    if (space == switches) continue;
    const std::string address =
        description(space, "addr", "eth0").at("addr_info").at(0).at("local").get<std::string>();
    const std::string name_and_speed = alias(space);
    const std::size_t at = name_and_speed.find('@');
    hosts[std::stoi(address.substr(address.rfind('.') + 1))] = {name_and_speed.substr(0, at), space, address,
                                                                std::stod(name_and_speed.substr(at + 1))};
  }
  const auto ordered = std::views::values(hosts);
  return {ordered.begin(), ordered.end()};
}

std::vector<RankStart> lab_ranks(const std::vector<LabHost>& hosts, int ranks_per_host) {
  const std::vector<int> cores = usable_cores();
  const int port = free_port();
  std::vector<RankStart> ranks;
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    for (int local = 0; local < ranks_per_host; ++local) {
      const RankContext context{.rank = static_cast<int>(ranks.size()),
                                .world_size = static_cast<int>(hosts.size()) * ranks_per_host,
                                .local_rank = local,
                                .local_world_size = ranks_per_host,
                                .master_addr = hosts.front().address,
                                .master_port = port};
      RankStart start{rank_variables(context), kNamespaceFolder + ("/" + hosts[host].space),
                      cores_of_rank(cores, static_cast<int>(host), static_cast<int>(hosts.size()))};
      start.variables[kHostNameVariable] = hosts[host].name;
      start.variables["GLOO_SOCKET_IFNAME"] = "eth0";  // PyTorch's Gloo would choose the loopback
      start.variables[kLabCoresVariable] = std::to_string(cores.size());
      start.variables[kHostSpeedVariable] = std::to_string(hosts[host].speed);
      ranks.push_back(std::move(start));
    }
  }
  return ranks;
}

LabScope::LabScope(const LabPlan& plan) : lab_(plan.lab) { build_lab(plan); }

LabScope::~LabScope() {
  try {
    remove_lab(lab_);
  } catch (const std::exception& error) {
    std::cerr << "stepcast: " << error.what() << "\nstepcast: remove the rest with 'stepcast lab down'\n";
  }
}

}  // namespace stepcast
