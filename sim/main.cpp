#include "sim/cli/command.hpp"
#include "sim/collectives/algorithm.hpp"

int main(int argc, char** argv) {
  stepcast::check_reachable(stepcast::algorithms());
  return stepcast::run_program(
      "stepcast",
      "stepcast forecasts how long a distributed training step takes, and checks it against real runs.", argc,
      argv);
}
