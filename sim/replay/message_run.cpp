#include <algorithm>
#include <cstdint>
#include <utility>

#include "sim/replay/collective_run.hpp"

namespace stepcast {
namespace {

class MessageRun : public CollectiveRun {
 public:
  using CollectiveRun::CollectiveRun;

  void join(int index, Callback done) override {
    Member& member = progress_[index];
    member.done = std::move(done);
    member.steps = algorithm_.steps(call_, index);
    member.open_parts.assign(member.steps, 0);
    post(index);
    const double copied = algorithm_.copied ? algorithm_.copied(call_, index).count() : 0.0;
    work(index, &Calibration::copy, copied, 2.0, false);
    advance(index);
  }

 private:
  /// A rank's progress: steps [0, over) are over, steps [over, posted) under way.
  struct Member {
    Callback done;
    int steps = 0;
    int posted = 0;
    int over = 0;
    bool working = false;  ///< its thread copies or reduces
    bool finished = false;
    std::vector<std::uint8_t> open_parts;  ///< by step: sends and receives that are not over
  };
  void post(int index) {
    Member& member = progress_[index];
    while (member.posted < member.steps) {
      const Exchange step = algorithm_.step(call_, index, member.posted);
      if (step.after >= member.over) return;
      const int number = member.posted++;
      const bool sends = step.to >= 0 && step.sent.count() > 0.0;
      const bool receives = step.from >= 0 && step.received.count() > 0.0;
      member.open_parts[number] = static_cast<std::uint8_t>((sends ? 1 : 0) + (receives ? 1 : 0));
      if (receives) offer(step.from, index, number, false, step.received.count());
      if (sends) offer(index, step.to, number, true, step.sent.count());
    }
  }

  /// Posts one side of a message. A rank that represents others receives what one of them sends, and sends to
  /// one of them.
  void offer(int sender, int receiver, int step, bool is_send, double bytes) {
    const int from = members_.first[sender], to = members_.first[receiver];
    const int own = is_send ? from : to;
    messages_.post({from, to}, {is_send, rank(from), rank(receiver), bytes,
                                [this, own, step] { part_over(own, step); }, plan_.flow_type});
  }

  void part_over(int index, int step) {
    Member& member = progress_[index];
    if (--member.open_parts[step] == 0 && step == member.over) advance(index);
  }

  /// Starts a copy or a reduction, which passes `traffic` times over its bytes; false if it costs nothing.
  bool work(int index, FittedCost Calibration::*kind, double bytes, double traffic, bool step_over) {
    const Calibration* costs = world_.input.calibration;
    if (costs == nullptr || bytes <= 0.0) return false;
    const double seconds = (costs->*kind).cost.at(Bytes(bytes)).count();
    if (seconds <= 0.0) return false;
    progress_[index].working = true;
    world_.processors.run(world_.transport.replayed_node(rank(index)),
                          {.seconds = seconds,
                           .memory_bytes_per_s = traffic * bytes / seconds,
                           .rank = rank(index),
                           .communication = true},
                          [this, index, step_over] { work_over(index, step_over); });
    return true;
  }

  void work_over(int index, bool step_over) {
    Member& member = progress_[index];
    member.working = false;
    if (step_over) {
      ++member.over;
      post(index);
    }
    advance(index);
  }

  /// Ends steps in order, reducing what has arrived, and posts what comes after them.
  void advance(int index) {
    Member& member = progress_[index];
    while (!member.working && member.over < member.posted && member.open_parts[member.over] == 0) {
      const Exchange step = algorithm_.step(call_, index, member.over);
      const double reduced = step.reduce ? step.received.count() : 0.0;
      if (work(index, &Calibration::reduce, reduced, 3.0, true)) return;
      ++member.over;
      post(index);
    }
    if (member.over == member.steps && !member.working && !member.finished) {
      member.finished = true;
      std::exchange(member.done, nullptr)();
    }
  }

  std::vector<Member> progress_ = std::vector<Member>(members_.ranks.size());
  PointToPoint messages_{world_.clock, world_.transport};
};

}  // namespace

std::unique_ptr<CollectiveRun> make_message_run(const ReplayWorld& world, const CollectivePlan& plan,
                                                const Members& members) {
  return std::make_unique<MessageRun>(world, plan, members);
}

}  // namespace stepcast
