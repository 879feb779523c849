#pragma once

#include <string>
#include <vector>

#include "runner/lab/plan.hpp"
#include "runner/launch/blocked_signals.hpp"
#include "runner/launch/launch.hpp"

/// Builds, inspects and removes labs. Only network namespaces whose names begin with `lab_prefix` are
/// changed, and nothing connects them with the machine's own interfaces: no frame of a lab leaves the
/// machine.
namespace stepcast {

/// Folder of the named network namespaces.
constexpr const char* kNamespaceFolder = "/run/netns";

/// \throws CapabilityError unless `ip` and `tc` of iproute2 exist and this process may create network
/// namespaces (CAP_NET_ADMIN and CAP_SYS_ADMIN, which root has)
void require_lab_capabilities();

/// Builds the lab. \throws RunError with the message of `ip` or `tc`, after which nothing is left, or if
/// there is a lab of this name or the rest of one
void build_lab(const LabPlan& plan);

/// Ends the processes inside (SIGTERM, after 2 s SIGKILL) and removes all namespaces of the lab.
/// \return number of namespaces
int remove_lab(const std::string& lab);

/// Cluster, namespaces, processes and links of a lab, in words.
std::string lab_status(const std::string& lab);

/// The hosts of a lab that is up, in the cluster's order. \throws RunError if there is none, or building was
/// interrupted
std::vector<LabHost> lab_hosts(const std::string& lab);

/// Starts of the ranks of a job: `ranks_per_host` on every host, host after host, in its network namespace,
/// with torchrun's variables and STEPCAST_HOST_NAME. Hosts divide this machine's cores among them if there
/// are enough. \pre hosts not empty, ranks_per_host >= 1
std::vector<RankStart> lab_ranks(const std::vector<LabHost>& hosts, int ranks_per_host);

/// A lab for the time of a scope. SIGINT, SIGTERM and SIGHUP are blocked meanwhile, so that it is always
/// removed; the ranks that `launch_ranks` starts receive them.
class LabScope {
 public:
  explicit LabScope(const LabPlan& plan);
  ~LabScope();  ///< removes it
  LabScope& operator=(LabScope&&) = delete;

 private:
  std::string lab_;
  BlockedSignals blocked_{{SIGINT, SIGTERM, SIGHUP}};
};

}  // namespace stepcast
