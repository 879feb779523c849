#include "sim/train/training.hpp"

#include <algorithm>
#include <cmath>

#include "core/expression.hpp"
#include "core/file.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"

namespace stepcast {
namespace {

/// Steps of `100` or `30min`.
double interval_of(const std::string& text, double step_s) {
  if (const auto steps = number_in<int>(text); steps && *steps >= 1) return *steps;
  if (const auto time = magnitude_of(text); time && time->kind == "seconds" && time->value > 0.0)
    return std::max(1.0, std::round(time->value / step_s));
  throw UsageError("--interval: '{}' must be above 0, steps or a time; write for example 100 or 30min", text);
}

/// Makes the plan of a training from a forecast and the request.
class Planner {
 public:
  Planner(const TrainingFacts& facts, const TrainingRequest& request)
      : facts_(facts),
        request_(request),
        wish_(request.checkpoint),
        host_(facts.host),
        hosts_(facts.hosts()) {
    plan_.failures = load_failures(request.failures);
    plan_.checkpoint = wish_;
    case_.step_s = facts.step_s;
    case_.steps = steps();
    if (wish_.method != "none") size_checkpoints();
    recovery_ = plan_.failures.recovery;
    for (const auto& [part, time] : request.recovery) set_part(recovery_, part, time);
  }

  TrainingPlan plan() {
    case_.restart_s = restart_s(0);
    for (const FailureComponent& component : plan_.failures.components) {
      const double rate = component.per_s * units_of(component);
      plan_.events_per_day.push_back(rate * kDay);
      if (rate <= 0.0) continue;
      if (component.effect == FailureEffect::kSlow)
        case_.slow.push_back({rate, component.lasts.count(), component.slowdown});
      else
        case_.interruptions.push_back(interruption_of(component, rate));
    }
    const auto refuse_unless = [&](const auto& needs, const char* option, bool given) {
      if (given && !case_.interruptions.empty() && std::ranges::none_of(case_.interruptions, needs))
        throw UsageError("--{} has no effect: no failure of '{}' needs it", option, plan_.failures.name);
    };
    refuse_unless([&](auto& one) { return one.repair_s == request_.repair.count(); }, "repair",
                  request_.repair > Seconds(0));
    refuse_unless([](auto& one) { return one.hosts > 0; }, "spares", request_.spares >= 0);
    set_elasticity();
    case_.interval = case_.steps;
    case_.checkpoint.exists = wish_.method != "none";
    if (case_.checkpoint.exists) set_checkpoints();
    add_assumptions();
    if (case_.elasticity == Elasticity::kNone) checked_progress(renewal_of(case_).useful_rate);
    return std::move(plan_);
  }

 private:
  [[nodiscard]] double steps() const {
    const TrainingRequest& r = request_;
    if ((r.tokens > 0.0) + (r.steps > 0.0) + (r.epochs > 0.0) != 1)
      throw UsageError("set the length of the training with one of --tokens, --steps and --epochs");
    if (r.steps > 0.0) return std::ceil(r.steps);
    if (r.epochs > 0.0 && r.epoch_samples <= 0.0) throw UsageError("--epochs requires --epoch-samples");
    const double amount = r.epochs > 0.0 ? r.epochs * r.epoch_samples : r.tokens;
    const double per_step = facts_.samples_per_step * (r.epochs > 0.0 ? 1.0 : facts_.tokens_per_sample);
    if (per_step <= 0.0)
      throw UsageError("the {} of a step are unknown; set --steps of 'stepcast train'{}",
                       r.epochs > 0.0 ? "samples" : "tokens",
                       facts_.samples_per_step > 0.0 ? ", or --epochs and --epoch-samples" : "");
    return std::ceil(amount / per_step);
  }

  [[nodiscard]] bool in_memory() const { return wish_.method != "none" && wish_.target != "storage"; }
  [[nodiscard]] double storage_s() const { return (plan_.checkpoint.size / rate_).count(); }
  [[nodiscard]] double per_host() const { return plan_.checkpoint.size.count() / hosts_; }
  /// From the devices to the memory of their host; 0 if its links are unknown.
  [[nodiscard]] double copy_s() const {
    return host_.to_memory > BytesPerSecond(0) ? per_host() / host_.to_memory.count() : 0.0;
  }
  [[nodiscard]] double between_hosts_s() const { return per_host() / host_.to_network.count(); }
  /// Whether the loss of so many hosts loses checkpoints in memory.
  [[nodiscard]] bool lost_with(int hosts) const {
    return in_memory() && hosts > (wish_.target == "neighbour" ? 1 : 0);
  }

  /// Sets size and rate. \throws UsageError, InputError if they are unknown or there is too little room
  void size_checkpoints() {
    Bytes& size = plan_.checkpoint.size;
    if (!(size > Bytes(0))) size = facts_.state;
    if (!(size > Bytes(0))) throw UsageError("the size of a checkpoint is unknown; set --checkpoint-size");
    const Storage& storage = host_.storage;
    const BytesPerSecond all = hosts_ * storage.host_rate, none;
    rate_ = wish_.storage_rate > none                                    ? wish_.storage_rate
            : storage.rate > none && !(none < all && all < storage.rate) ? storage.rate
                                                                         : all;
    if (!(rate_ > none))
      throw UsageError("cluster '{}' states no storage; set --storage-rate, as 100GB/s", facts_.cluster);
    if (storage.capacity > Bytes(0) && size > storage.capacity)
      throw InputError("a checkpoint of {} is larger than the storage of cluster '{}', {}", to_text(size),
                       facts_.cluster, to_text(storage.capacity));
    if (!in_memory()) return;
    const bool twice = wish_.target == "neighbour";
    if (twice && (hosts_ < 2 || !(host_.to_network > none)))
      throw UsageError("--checkpoint-to neighbour requires at least two hosts with a network");
    if (const Bytes needed(per_host() * (twice ? 2.0 : 1.0)); needed > host_.memory)
      throw InputError("checkpoints of {} per host are larger than its memory, {} (0 B: unknown)",
                       to_text(needed), to_text(host_.memory));
  }

  [[nodiscard]] CheckpointCost cost_of(const std::string& method) const {
    const double write = !in_memory() ? storage_s() : wish_.target == "neighbour" ? between_hosts_s() : 0.0;
    CheckpointCost cost{.slowdown = wish_.slowdown, .storage_write_s = in_memory() ? storage_s() : 0.0};
    if (method == "blocking") {
      cost.stall_s = write + (in_memory() ? copy_s() : 0.0);
    } else {
      cost.stall_s = wish_.stop.count() + copy_s();
      cost.write_s = write;
    }
    return cost;
  }

  /// Scheduling, initialisation, load and warm-up after the loss of so many hosts.
  [[nodiscard]] double restart_s(int hosts) const {
    double load = 0.0;
    if (wish_.method != "none" && (!in_memory() || lost_with(hosts)))
      load = storage_s();
    else if (in_memory())
      load = copy_s() + (hosts > 0 ? between_hosts_s() : 0.0);
    const Recovery& all = recovery_;
    const Seconds begin = all.at("initialisation") + facts_.ranks * all.at("per_rank") + all.at("warm_up");
    return load + (all.at("scheduling") + begin).count();
  }

  [[nodiscard]] double units_of(const FailureComponent& component) const {
    if (component.per == FailureUnit::kSwitch && host_.at_switch == 0)
      throw InputError("failures '{}' count switches, and cluster '{}' has none", component.name,
                       facts_.cluster);
    const std::array<double, 5> units{
        1.0 * facts_.ranks, 1.0 * hosts_, std::ceil(1.0 * hosts_ / component.hosts),
        std::max(1, host_.switches) * std::ceil(1.0 * hosts_ / std::max(1, host_.at_switch)), 1.0};
    const double count = units.at(static_cast<std::size_t>(component.per));
    return component.at_most > 0.0 ? std::min(count, component.at_most) : count;
  }

  [[nodiscard]] Interruption interruption_of(const FailureComponent& component, double rate) const {
    Interruption one{.rate = rate, .planned = component.effect == FailureEffect::kPlanned};
    if (component.effect == FailureEffect::kRepair) {
      one.hosts = component.per == FailureUnit::kSwitch ? host_.at_switch : component.hosts;
      one.hosts = std::min(one.hosts, hosts_);
      one.loses_memory = lost_with(one.hosts);
      one.repair_s = (component.lasts > Seconds(0) ? component.lasts : request_.repair).count();
      if (request_.spares >= 0 && one.repair_s <= 0.0)
        throw UsageError("--spares: the repair of '{}' is unknown; set --repair, as 12h", component.name);
    }
    const Seconds detection =
        component.detection >= Seconds(0) ? component.detection : recovery_.at("detection");
    one.detection_s = one.planned ? 0.0 : (detection + recovery_.at("diagnosis")).count();
    one.restart_s = restart_s(one.hosts);
    if (one.planned) one.stop_s = component.lasts.count();
    if (const double outage = component.outage.count(); outage > 0.0) {
      one.detection_s = std::min(one.detection_s, outage);
      (one.planned ? one.stop_s : one.restart_s) = outage - one.detection_s;
      if (one.planned) one.restart_s = 0.0;
    }
    return one;
  }

  void set_elasticity() {
    case_.spares = request_.spares;
    case_.elasticity = request_.elasticity;
    if (request_.elasticity == Elasticity::kNone) return;
    const bool shrinks = request_.elasticity == Elasticity::kShrink;
    case_.replicas = std::min(hosts_, shrinks ? facts_.replicas : facts_.full_copies);
    if (case_.replicas < 2)
      throw UsageError("--elastic {}: different hosts have no {}",
                       row_of(kElasticities, request_.elasticity).name,
                       shrinks ? "data-parallel replicas" : "replicas with the whole state, as HSDP has");
    case_.hosts_per_replica = std::max(1, hosts_ / case_.replicas);
  }

  void set_checkpoints() {
    std::vector<std::string> methods{wish_.method};
    if (wish_.method == "best") methods = {"blocking", "async"};
    plan_.best_interval = wish_.interval == "best";
    std::optional<TrainingCase> best;
    for (const std::string& method : methods) {
      TrainingCase one = case_;
      one.checkpoint = cost_of(method);
      const double least = std::ceil((1.0 - one.checkpoint.slowdown) * one.checkpoint.write_s / one.step_s);
      one.interval = plan_.best_interval ? best_interval_of(one)
                                         : std::min(one.steps, interval_of(wish_.interval, one.step_s));
      const bool too_short = one.interval < std::min(least, one.steps);  // blocking ones never are
      if (too_short && !best)
        throw UsageError("--interval {}: the write of a checkpoint takes {}; set at least {:.0f} steps",
                         wish_.interval, to_text(Seconds(one.checkpoint.write_s)), least);
      if (best && (too_short || renewal_of(*best).useful_rate >= renewal_of(one).useful_rate)) continue;
      best = one;
      plan_.checkpoint.method = method;
    }
    case_ = *best;
    if (in_memory()) case_.checkpoint.storage_every = storage_every();
  }

  /// Between checkpoints that survive the loss of hosts, by Young's formula for such failures.
  [[nodiscard]] static double between_stored_s(const TrainingCase& of) {
    const double lost =
        sum_of(of.interruptions, [](const Interruption& one) { return one.loses_memory ? one.rate : 0.0; });
    const CheckpointCost& cost = of.checkpoint;
    const double best = lost > 0.0 ? std::sqrt(2.0 * cost.slowdown * cost.storage_write_s / lost) : INFINITY;
    return std::max(best, cost.storage_write_s);
  }

  /// In memory for the failures that keep it, but at least as often as into the storage.
  [[nodiscard]] static double best_interval_of(TrainingCase one) {
    const double stored = std::ceil(between_stored_s(one) / one.step_s);
    std::erase_if(one.interruptions, &Interruption::loses_memory);
    return std::min(best_interval(one), stored);
  }

  [[nodiscard]] int storage_every() const {
    const double every = between_stored_s(case_) / case_.step_s / case_.interval,
                 least = case_.checkpoint.storage_write_s / case_.step_s / case_.interval;
    return static_cast<int>(std::clamp(std::max(std::round(every), std::ceil(least)), 1.0,
                                       std::ceil(case_.steps / case_.interval)));
  }

  void add_assumptions() {
    std::vector<std::string>& assumed = plan_.assumed = plan_.failures.assumes;
    assumed.push_back(
        facts_.cluster.empty()
            ? "each device has a host of its own (--cluster)"
            : fmt::format("a host, or tray of a rack, fails with all its devices: {} in cluster '{}'",
                          host_.devices, facts_.cluster));
    if (request_.spares < 0 &&
        std::ranges::any_of(case_.interruptions, [](auto& one) { return one.hosts > 0; }))
      assumed.emplace_back("a spare host is always ready (--spares)");
    const bool whole = std::ranges::all_of(plan_.failures.components, [](const FailureComponent& one) {
      return one.effect == FailureEffect::kSlow || one.per_s <= 0.0 || one.outage > Seconds(0);
    });
    std::vector<std::string> unknown;
    for (const auto& [part, time] : recovery_)
      if (!contains(request_.recovery, part, &std::pair<std::string, std::string>::first))
        unknown.push_back(part + " " + to_text(time));
    if (!case_.interruptions.empty() && whole && !request_.recovery.empty())
      assumed.emplace_back("outages are those of the failures, which --recovery only divides");
    else if (!case_.interruptions.empty() && !whole && !unknown.empty())
      assumed.push_back("times of detection and restart, without a measurement behind them: " +
                        joined(unknown) + " (--recovery)");
    std::vector<std::string> own;
    for (const FailureComponent& one : plan_.failures.components)
      if (one.detection >= Seconds(0)) own.push_back("'" + one.name + "'");
    if (!own.empty() && contains(request_.recovery, "detection", &std::pair<std::string, std::string>::first))
      assumed.push_back("--recovery detection has no effect on " + joined(own, ", ") +
                        " with a detection of its own");
    const CheckpointRequest standard;
    if (case_.checkpoint.write_s + case_.checkpoint.storage_write_s > 0.0 &&
        wish_.slowdown == standard.slowdown)
      assumed.push_back("training is " + percent_text(wish_.slowdown, 0) +
                        " slower during a write, as torchtitan once (--checkpoint-slowdown)");
    if (plan_.checkpoint.method == "async" && wish_.stop == standard.stop)
      assumed.push_back("a checkpoint stops training for " + to_text(wish_.stop) +
                        " besides its copy, as torchtitan once (--checkpoint-stop)");
    if (wish_.method != "none" && wish_.storage_rate <= BytesPerSecond(0))
      assumed.push_back(fmt::format("storage of cluster '{}': {} together (--storage-rate)", facts_.cluster,
                                    to_text(rate_)));
    if (facts_.power > Watts(0))
      assumed.emplace_back("energy at rated power of the devices, without hosts and cooling");
  }

  const TrainingFacts& facts_;
  const TrainingRequest& request_;
  const CheckpointRequest& wish_;
  const HostFacts& host_;
  int hosts_;
  BytesPerSecond rate_;
  Recovery recovery_;
  TrainingPlan plan_;
  TrainingCase& case_ = plan_.training;
};

}  // namespace

double checked_progress(double rate) {
  if (rate > 0.01) return rate;
  throw InputError("the training makes no progress: {} of its time is useful, failures follow too soon",
                   percent_text(std::max(0.0, rate), 2));
}

TrainingPlan plan_training(const TrainingFacts& facts, const TrainingRequest& request) {
  if (request.failures.empty())
    throw UsageError("--failures is missing: {}, mtbf=3h, a YAML file or a log",
                     joined(resource_names("reliability", ".yaml")));
  return Planner(facts, request).plan();
}

TrainingOutcome train(const TrainingFacts& facts, const TrainingRequest& request) {
  constexpr double kMostEvents = 1e6;
  TrainingOutcome outcome{facts, request, plan_training(facts, request), {}, {}};
  const TrainingCase& training = outcome.plan.training;
  outcome.renewal = renewal_of(training);
  const double events = 1.0 + outcome.failures_per_day() * training.useful_s() / kDay;
  if (events > 1e7)
    throw InputError("the training has {:.2g} failures, of which at most 1e7 are simulated; shorten it",
                     events);
  const double count =
      request.trainings > 0 ? request.trainings : std::clamp(kMostEvents / events, 10.0, 1e3);
  outcome.runs = simulate_trainings(training, static_cast<std::size_t>(count), request.seed);
  return outcome;
}

}  // namespace stepcast
