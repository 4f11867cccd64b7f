; Calls of operator new as a memory profile leaves them, which clang -mllvm -optimize-hot-cold-new turns into those with a hint.
target triple = "x86_64-unknown-linux-gnu"

declare ptr @_Znwm(i64) #0
declare ptr @_Znam(i64) #0
declare ptr @_ZnwmRKSt9nothrow_t(i64, ptr) #0
declare ptr @_ZnamRKSt9nothrow_t(i64, ptr) #0
declare ptr @_ZnwmSt11align_val_t(i64, i64) #0
declare ptr @_ZnamSt11align_val_t(i64, i64) #0
declare ptr @_ZnwmSt11align_val_tRKSt9nothrow_t(i64, i64, ptr) #0
declare ptr @_ZnamSt11align_val_tRKSt9nothrow_t(i64, i64, ptr) #0
@_ZSt7nothrow = external global i8
@made = global [8 x ptr] zeroinitializer

define void @make() {
  %a = call ptr @_Znwm(i64 40) #1
  store ptr %a, ptr @made
  %b = call ptr @_Znam(i64 40) #1
  store ptr %b, ptr getelementptr ([8 x ptr], ptr @made, i64 0, i64 1)
  %c = call ptr @_ZnwmRKSt9nothrow_t(i64 40, ptr @_ZSt7nothrow) #1
  store ptr %c, ptr getelementptr ([8 x ptr], ptr @made, i64 0, i64 2)
  %d = call ptr @_ZnamRKSt9nothrow_t(i64 40, ptr @_ZSt7nothrow) #1
  store ptr %d, ptr getelementptr ([8 x ptr], ptr @made, i64 0, i64 3)
  %e = call ptr @_ZnwmSt11align_val_t(i64 40, i64 64) #1
  store ptr %e, ptr getelementptr ([8 x ptr], ptr @made, i64 0, i64 4)
  %f = call ptr @_ZnamSt11align_val_t(i64 40, i64 64) #1
  store ptr %f, ptr getelementptr ([8 x ptr], ptr @made, i64 0, i64 5)
  %g = call ptr @_ZnwmSt11align_val_tRKSt9nothrow_t(i64 40, i64 64, ptr @_ZSt7nothrow) #1
  store ptr %g, ptr getelementptr ([8 x ptr], ptr @made, i64 0, i64 6)
  %h = call ptr @_ZnamSt11align_val_tRKSt9nothrow_t(i64 40, i64 64, ptr @_ZSt7nothrow) #1
  store ptr %h, ptr getelementptr ([8 x ptr], ptr @made, i64 0, i64 7)
  ret void
}

attributes #0 = { nobuiltin }
attributes #1 = { builtin "memprof"="cold" }
