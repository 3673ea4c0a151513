// Training tasks over examples (tasks/), whose targets are tokens or classes.
#pragma once

#include <memory>

#include "cortado/tasks/examples.h"
#include "cortado/train/task.h"

namespace cortado {

// Opens the task that a config's object "task" names. Language models learn its target tokens, classifiers its classes.
std::unique_ptr<TaskData> open_example_data(const Json& task);

// Scores a model on the first `most` examples of a split (0: all). Returns the task's metrics and, as "loss", the mean
// cross-entropy per target in nats. Runs without gradients and dropout.
Json score_examples(const Backbone& model, const TaskExamples& task, Split split, int64_t batch, int64_t most,
                    const std::function<void(int64_t done, int64_t total)>& progress = {});

}  // namespace cortado
