#pragma once

#include <deque>
#include <unordered_map>
#include <vector>

#include "sim/kineto/names.hpp"
#include "sim/kineto/rank_profile.hpp"

namespace stepcast {

/// Whose an operation is: the model's, or the strategy's.
enum class Owner : std::uint8_t { kModel, kCopies, kCollective, kBlocked };

/// Where a call on a CPU thread belongs.
struct Place {
  int step = -1;
  StepPart part = StepPart::kRest;
  Owner owner = Owner::kModel;
  int operation = -1;  ///< of the step; -1: none
  int call = -1;       ///< of the step's collectives; -1: none
};

/// Follows the CPU threads of a profile, and gives each moment and each launch its place. Time between two
/// operations counts for the later one: Python's, mostly.
///
/// - forward: differentiable operations of the main thread before the last autograd node of the step
/// - backward: inside `autograd::engine::evaluate_function`, on any thread; its operation is the one that
///   created the node with this sequence number. `AccumulateGrad` has none: it follows its node.
/// - optimizer: `Optimizer.step#`, and what the main thread runs between the backward and it (clipping); of
///   one around a closure with the backward, what follows that
/// - input: `enumerate(DataLoader)`, and what runs before the first operation of the forward
class HostSweep {
 public:
  struct Launch {
    int correlation = -1;
    Place place{};
    double time = 0.0;
  };

  /// \param steps names and times of the host's steps, in order; filled by run()
  HostSweep(const KinetoFile& file, const std::vector<NameKind>& kinds, int main_track,
            std::vector<ProfiledStep>& steps);
  void run();
  /// Null: the file has no launch with this correlation.
  [[nodiscard]] const Launch* launch(int correlation) const;
  /// The last step that began before.
  [[nodiscard]] int step_at(double time) const;

 private:
  struct Frame {
    double end = 0.0;
    Place place{};
    bool definite = false;   ///< its time is its own, not that of what follows
    bool operation = false;  ///< `cpu_op`
    NameKind kind = NameKind::kOther;
  };
  struct Track {
    std::vector<Frame> frames{};
    double cursor = 0.0;
    int current = -1;  ///< operation whose backward runs
    bool is_main = false;
  };
  struct MainState {
    int step = -1, operation = -1;
    bool in_loss = false, updated = false;
    std::string module{}, unit{};
  };
  struct NodeTime {
    double begin = 0.0, end = 0.0;
  };

  void find_nodes();
  void sweep(int track);
  void enter(Track& track, int index);
  void leave(Track& track, double until);
  void account(Track& track, double until);
  void add(const Place& place, double duration, bool gap);
  Place place_of(const Track& track, const KinetoEvent& event, int index, NameKind kind);
  Place main_place(const KinetoEvent& event, int index, NameKind kind, int step, int current);
  void begin_operation(const KinetoEvent& event, int index, NameKind kind, int step, Place& place);
  void note_node(Track& track, const KinetoEvent& event);
  void note_gradient(const Track& track, const KinetoEvent& event);
  int note_collective(const KinetoEvent& event, const std::string& name, int step);
  double gap_begin(const Track& track, double until);
  [[nodiscard]] bool nodes_since(const ProfiledStep& step, double time) const;
  [[nodiscard]] bool holds_sequences(int index) const;
  [[nodiscard]] bool nodes_follow(double time, int step) const;
  /// True if nodes of autograd begin inside.
  [[nodiscard]] bool holds_nodes(const KinetoEvent& event) const;
  [[nodiscard]] bool inside(const Track& track, NameKind kind) const;

  const KinetoFile& file_;
  const std::vector<NameKind>& kinds_;
  const int main_track_;
  std::vector<ProfiledStep>& steps_;
  std::deque<Launch> launches_;                            ///< sorted by correlation after run()
  std::unordered_map<int, std::pair<int, int>> creators_;  ///< step and operation by sequence number
  std::deque<NodeTime> nodes_;                             ///< of all tracks, sorted
  std::deque<NodeTime> other_nodes_;                       ///< events of autograd's other threads, sorted
  std::vector<NodeTime> windows_;                          ///< backwards beside the main thread
  MainState main_;
  std::string call_prefix_;
  bool has_sequences_ = false;
};

}  // namespace stepcast
