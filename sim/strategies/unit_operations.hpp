#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "sim/strategies/layout.hpp"
#include "sim/strategies/local_step.hpp"

namespace stepcast {

/// A reduction in flight.
struct Reduction {
  std::size_t unit = 0;
  int call = -1;      ///< to wait for
  bool adds = false;  ///< to the shard of earlier micro-batches
  bool last = false;  ///< of the step
};

/// Operations on units of sharded parameters, the same for FSDP and ZeRO. Each has the name `verb/unit`, with
/// `/2`, `/3` after it from the second in a step on.
class UnitOperations {
 public:
  UnitOperations(LocalStep& step, const Schedule& schedule) : step_(step), schedule_(schedule) {}

  [[nodiscard]] const FsdpUnit& unit(std::size_t index) const { return schedule_.units[index]; }

  /// All-gather of the parameters. \param allocates false: the whole array is always there
  int gather(std::size_t index, bool allocates, std::vector<int> after = {});
  void free_parameters(std::size_t index);
  /// Zeroes whole gradients. \param allocates as in gather()
  void zero_gradients(std::size_t index, bool allocates, std::vector<int> after = {});
  /// Divides whole gradients, or the own shard of them; by 1 not.
  void scale(std::size_t index, double factor, bool shard = false);
  /// Reduce-scatter of gradients; without shards, or with `all`, an all-reduce. With copies() its input, in
  /// the dtype of the reduction, takes the place of the gradients. \param incoming the shard gets its own
  /// array
  int reduce(std::size_t index, const std::vector<int>& after, bool all, bool incoming);
  /// All-reduce of the shard over the ranks that have the same one. \param name `all_reduce/UNIT`
  int reduce_shard(std::size_t index, int group, const std::vector<int>& after, const std::string& name,
                   bool incoming = false);
  /// Brings the shard from the host and gathers it. Returns the all-gather.
  int fetch_shard(std::size_t index);
  /// Waits for a reduction; of an all-reduce it keeps the own part as the shard.
  /// Frees the whole gradients, unless they stay, or were copied and freed before.
  /// Multiplies the shard by `factor` and adds it to that of earlier micro-batches, or sends it to the host.
  void finish(const Reduction& one, double factor, const Layout& layout, bool sends);
  /// Updates the own shard on the device, the host, or both. Returns the last operations.
  std::vector<int> update(std::size_t index, std::vector<int> after);
  /// True for FSDP2, whose gradients are arrays of their own: `--gathered copied`.
  [[nodiscard]] bool copies() const { return step_.model().execution.gathered == "copied"; }

 private:
  /// Sends the shard to the host and frees it. FSDP2 adds it there to that of earlier micro-batches,
  /// DeepSpeed on the GPU.
  void send_shard(const Reduction& one);
  [[nodiscard]] std::string numbered(const std::string& name);
  int add(const char* verb, std::size_t index, Action action, std::vector<int> after,
          std::vector<MemoryChange> memory = {}, Bytes traffic = {});

  LocalStep& step_;
  const Schedule& schedule_;
  std::map<std::string, int> named_;
  std::map<std::size_t, int> sent_;      ///< copies of send_shard()
  std::map<std::size_t, Bytes> summed_;  ///< on the host, which GPUs add to
};

}  // namespace stepcast
