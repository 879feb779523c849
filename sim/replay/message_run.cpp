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
    const double seconds = world_.copy_s(copied);
    if (seconds > 0.0) {
      member.working = true;
      world_.run_job(rank(index), seconds, 2.0 * copied, [this, index] { work_over(index, false); });
    }
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
      const double reduced = reduced_bytes(index, member.over);
      if (const double seconds = world_.reduce_s(reduced); seconds > 0.0) {
        member.working = true;
        world_.run_job(rank(index), seconds, 3.0 * reduced, [this, index] { work_over(index, true); });
        return;
      }
      ++member.over;
      post(index);
    }
    if (member.over == member.steps && !member.working && !member.finished) {
      member.finished = true;
      std::exchange(member.done, nullptr)();
    }
  }

  /// Bytes that arrived in a step and are added to the rank's own.
  [[nodiscard]] double reduced_bytes(int index, int step) const {
    if (world_.calibration == nullptr) return 0.0;
    const Exchange exchange = algorithm_.step(call_, index, step);
    return exchange.reduce ? exchange.received.count() : 0.0;
  }

  std::vector<Member> progress_ = std::vector<Member>(members_.ranks.size());
  PointToPoint messages_{world_.clock, world_.transport};
};

}  // namespace

std::unique_ptr<CollectiveRun> make_message_run(const CollectiveWorld& world, const CollectivePlan& plan,
                                                const Members& members) {
  return std::make_unique<MessageRun>(world, plan, members);
}

}  // namespace stepcast
