// From problems, as callers describe them, to one table of groups, whatever their form.
#pragma once

#include <cstddef>
#include <vector>

#include "../common/scheduler.h"
#include "group.h"

namespace nibblas::cpu {

// Ok, or the first reason to refuse the problem.
NibblasStatus check_problem(const NibblasProblem& problem);

// Groups of all products that have something to compute, in order.
class GroupTable {
 public:
  // Throws std::bad_alloc.
  GroupTable(const NibblasProblem* problems, i64 count);

  i64 count() const { return static_cast<i64>(groups_.size()); }
  const Group& operator[](i64 g) const { return groups_[static_cast<std::size_t>(g)]; }

  // For the scheduler: tiles of kTileRows weight rows, cost in multiples of 16 values along K.
  template <class Visit>
  void for_each(i64 groups, Visit visit) const {
    for (i64 g = 0; g < groups; ++g) {
      const Group& group = (*this)[g];
      if (!visit(g, tiles(group), cost(group))) return;
    }
  }

  static i64 tiles(const Group& group);

 private:
  void add(const NibblasProblem& problem);
  static i64 cost(const Group& group);

  std::vector<Group> groups_;
};

}  // namespace nibblas::cpu
