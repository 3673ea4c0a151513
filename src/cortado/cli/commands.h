// One function per subcommand: registers it with its options, help and a callback. Callbacks throw InputError (exit
// code 2) or Failure (exit code 1); main.cpp prints the line.
#pragma once

namespace CLI {
class App;
}

namespace cortado {

void add_prepare_command(CLI::App& app);
void add_train_command(CLI::App& app);
void add_eval_command(CLI::App& app);
void add_eval_ruler_commands(CLI::App& eval);  // subcommands of eval: ruler, niah
void add_eval_perplexity_command(CLI::App& eval);
void add_generate_command(CLI::App& app);
void add_compare_command(CLI::App& app);
void add_describe_command(CLI::App& app);
void add_import_command(CLI::App& app);
void add_export_command(CLI::App& app);
void add_linearize_command(CLI::App& app);
void add_mechanisms_command(CLI::App& app);
void add_doctor_command(CLI::App& app);
void add_sweep_command(CLI::App& app);
void add_task_command(CLI::App& app);
void add_analyze_command(CLI::App& app);
void add_bench_command(CLI::App& app);
void add_bench_model_command(CLI::App& bench);  // a subcommand of bench

}  // namespace cortado
