#include "models/chakra.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/ranges.hpp"
#include "records/result.hpp"
#include "schedule/operations.hpp"

/// Writes execution traces of Chakra.
namespace stepcast {
namespace {

constexpr double kNanosecond = 1e-9;

std::string group_name(const Schedule& schedule, int group) {
  return static_cast<int>(schedule.groups[group].ranks.size()) == schedule.world_size
             ? "0"
             : std::to_string(group + 1);
}

/// The nodes of one rank. What computes on the rank's main thread is a chain. An operation with hooks is
/// divided where they begin; time that no dependency explains, such as a launch, is a node of its own.
class RankNodes {
 public:
  RankNodes(const Schedule& schedule, const Result& result, int rank)
      : schedule_(schedule),
        program_(schedule.program(rank)),
        rank_(rank),
        done_(program_.ops.size()),
        last_hook_(program_.ops.size(), -1) {
    for (const Span& span : result.spans)
      if (span.rank == rank) spans_[span.name] = &span;
    for (std::size_t i = 0; i < program_.ops.size(); ++i)
      if (program_.ops[i].within >= 0) last_hook_[program_.ops[i].within] = static_cast<int>(i);
    if (rank >= static_cast<int>(result.breakdown.size())) return;
    step_s_ = result.breakdown[rank].step_s();
  }

  std::vector<ChakraNode> take() {
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      const Op& op = program_.ops[i];
      const bool divides = open_ >= 0 && static_cast<int>(i) < last_hook_[open_];  // starts between hooks
      if (op.within < 0 && !divides) close();
      if (op.within >= 0 && open_ == op.within) advance(span(op).start_s);
      add(static_cast<int>(i), op);
      if (op.within >= 0 && open_ == op.within && op.stream == Stream::kCompute) open_from_ = span(op).end_s;
      const bool suspends =
          op.exchange >= 0 && std::holds_alternative<Collective>(op.action) && !is_shift(op);
      if (open_ < 0 || op.within != open_ || !suspends) continue;
      wait_for(static_cast<int>(i), chained_);
      ready_s_ = open_from_ = span(op).end_s;
    }
    close();
    if (step_s_ - ready_s_ > kNanosecond) link("host", step_s_ - ready_s_);
    return std::move(nodes_);
  }

 private:
  struct Done {
    std::vector<std::uint64_t> nodes;  ///< to wait for
    double end_s = 0.0;
  };

  /// Adds the nodes of an operation to those that another one waits for.
  void wait_for(int index, std::vector<std::uint64_t>& nodes) const {
    nodes.insert(nodes.end(), done_[index].nodes.begin(), done_[index].nodes.end());
  }

  const Span& span(const Op& op) const {
    const auto found = spans_.find(op.name);
    if (found == spans_.end())
      throw InputError("no execution trace: the step of rank {} was not recorded ({}); predict with --exact",
                       rank_, op.name);
    return *found->second;
  }

  void add(int index, const Op& op) {
    if (std::holds_alternative<Copy>(op.action))
      throw InputError("no execution trace: {} copies between memories, which Chakra's traces do not have",
                       op.name);
    if (std::holds_alternative<Synchronize>(op.action)) return pass(index, op);
    if (op.stream == Stream::kComm) return add_message(index, op);
    join_chain(op);
    if (op.within < 0) {
      open_ = index;
      open_from_ = span(op).start_s;
      return;  // its pieces follow
    }
    compute(op.name, span(op).start_s, span(op).end_s);
    done_[index] = {{chain_}, span(op).end_s};
  }

  /// An operation without duration: who waits for it waits for what it waits for.
  void pass(int index, const Op& op) {
    Done& done = done_[index];
    for (const int before : op.after) {
      wait_for(before, done.nodes);
      done.end_s = std::max(done.end_s, done_[before].end_s);
    }
    if (op.stream == Stream::kCompute) join_chain(op);
  }

  void add_message(int index, const Op& op) {
    ChakraNode node{.id = next_++, .name = op.name, .type = ChakraType::kCollective};
    if (const auto later = ends_.upper_bound(span(op).start_s + kNanosecond); later != ends_.begin())
      node.after.push_back(std::prev(later)->second);
    for (const int before : op.after) wait_for(before, node.after);
    node.after = sorted_unique(std::move(node.after));
    const auto message = [&](const auto& one, ChakraType type, int from, int to) {
      node.type = type;
      node.numbers = {
          {"comm_size", size_of(one.message)}, {"comm_src", from}, {"comm_dst", to}, {"comm_tag", one.tag}};
    };
    if (const auto* call = std::get_if<Collective>(&op.action)) {
      if (traits(call->kind).chakra < 0)
        throw InputError(
            "no execution trace: {} rotates arrays in a ring, which Chakra has no collective for", op.name);
      node.numbers = {{"comm_type", traits(call->kind).chakra}, {"comm_size", size_of(call->message)}};
      node.group = group_name(schedule_, schedule_.group_index(call->group, rank_));
    } else if (const auto* send = std::get_if<Send>(&op.action)) {
      message(*send, ChakraType::kSend, rank_, rank_ + send->offset);
    } else if (const auto* receive = std::get_if<Recv>(&op.action)) {
      message(*receive, ChakraType::kReceive, rank_ + receive->offset, rank_);
    }
    done_[index] = {{node.id}, span(op).end_s};
    auto place = nodes_.end();  // before what computes meanwhile
    const auto meanwhile = [&](const ChakraNode& one) {
      return one.type <= ChakraType::kCompute && std::ranges::find(node.after, one.id) == node.after.end();
    };
    while (place != nodes_.begin() && meanwhile(*std::prev(place))) --place;
    nodes_.insert(place, std::move(node));
  }
  static std::int64_t size_of(Bytes bytes) { return std::llround(bytes.count()); }

  /// The next computing node waits for these, too.
  void join_chain(const Op& op) {
    for (const int before : op.after) {
      wait_for(before, chained_);
      ready_s_ = std::max(ready_s_, done_[before].end_s);
    }
  }
  void advance(double until_s) {
    if (open_ >= 0 && until_s > open_from_) compute(program_.ops[open_].name, open_from_, until_s);
    open_from_ = std::max(open_from_, until_s);
  }
  void close() {
    if (open_ < 0) return;
    const Op& op = program_.ops[open_];
    advance(span(op).end_s);
    if (nodes_.empty() || !chained_.empty()) compute(op.name, open_from_, open_from_);
    done_[open_] = {{chain_}, std::max(open_from_, ready_s_)};
    open_ = -1;
  }

  void compute(const std::string& name, double start_s, double end_s) {
    if (start_s - ready_s_ > kNanosecond / 2.0) link(name + "/launch", start_s - ready_s_);
    link(name, end_s - start_s);
    ready_s_ = end_s;
    ends_[end_s] = chain_;
  }
  void link(const std::string& name, double duration_s) {
    ChakraNode node{
        .id = next_++, .name = name, .after = std::move(chained_), .duration_s = std::max(duration_s, 0.0)};
    if (chain_ > 0) node.after.push_back(chain_);
    node.after = sorted_unique(std::move(node.after));
    chained_.clear();
    chain_ = node.id;
    nodes_.push_back(std::move(node));
  }
  const Schedule& schedule_;
  const Program& program_;
  int rank_;
  std::vector<Done> done_;      ///< by operation
  std::vector<int> last_hook_;  ///< by parent
  std::map<std::string, const Span*> spans_;
  std::vector<ChakraNode> nodes_;
  std::map<double, std::uint64_t> ends_;  ///< computing nodes by their ends; a message waits for the last
  std::vector<std::uint64_t> chained_;    ///< nodes that the next computing one waits for
  std::uint64_t next_ = 1, chain_ = 0;    ///< the last computing node; 0: none
  double ready_s_ = 0.0;                  ///< when all that the next one waits for is done
  int open_ = -1;                         ///< operation whose pieces are written
  double open_from_ = 0.0;
  double step_s_ = 0.0;
};

}  // namespace

std::vector<std::string> chakra_traces(const Result& result) {
  if (result.forecast.schedule == nullptr) throw InputError("no execution trace: it is written of forecasts");
  const Schedule& schedule = *result.forecast.schedule;
  std::vector<std::string> traces;
  for (int rank = 0; rank < schedule.world_size; ++rank)
    traces.push_back(chakra_text(RankNodes(schedule, result, rank).take()));
  return traces;
}

void write_chakra(const std::string& prefix, const Result& result, bool force) {
  const std::vector<std::string> traces = chakra_traces(result);
  const auto path = [&](std::size_t rank) { return fmt::format("{}.{}.et", prefix, rank); };
  if (const std::string next = path(traces.size()); std::filesystem::exists(next))
    throw InputError("{}: is of a step on more ranks; remove it, or choose another name", next);
  check_writable(prefix + ".groups.json", force);  // all or none
  for (std::size_t rank = 0; rank < traces.size(); ++rank) check_writable(path(rank), force);
  for (std::size_t rank = 0; rank < traces.size(); ++rank) write_file(path(rank), traces[rank], force);
  const Schedule& schedule = *result.forecast.schedule;
  nlohmann::json groups = nlohmann::json::object();
  for (std::size_t i = 0; i < schedule.groups.size(); ++i)
    if (const std::string name = group_name(schedule, static_cast<int>(i)); name != "0")
      groups[name] = schedule.groups[i].ranks;
  write_file(prefix + ".groups.json", groups.dump(1) + "\n", force);
}

}  // namespace stepcast
