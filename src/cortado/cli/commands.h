// One function per subcommand, which registers it with its options, help and callback. Callbacks throw InputError (exit
// code 2) or Failure (exit code 1); main.cpp prints the message.
#pragma once

namespace CLI {
class App;
}

namespace cortado {

using AddCommand = void(CLI::App& app);

AddCommand add_prepare_command, add_train_command, add_eval_command, add_generate_command, add_compare_command;
AddCommand add_describe_command, add_import_command, add_export_command, add_linearize_command, add_mechanisms_command;
AddCommand add_doctor_command, add_sweep_command, add_task_command, add_analyze_command, add_serve_command;
AddCommand add_bench_command;
// Subcommands of eval (ruler and niah, ppl, task) and of bench (model).
AddCommand add_eval_ruler_commands, add_eval_perplexity_command, add_eval_task_command, add_bench_model_command;

}  // namespace cortado
