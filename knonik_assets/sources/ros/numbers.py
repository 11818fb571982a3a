"""Rows of numbers out of messages of known types."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Rows", "is_numeric"]

Row = tuple[Sequence[float], Sequence[str] | None]
"""Values, and their names where the message or its type says them."""

_SCALARS = frozenset(
    f"std_msgs/msg/{name}"
    for name in (
        "Bool", "Byte", "Char", "Float32", "Float64", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32",
        "UInt64",
    )
)  # fmt: skip
_ARRAYS = frozenset(f"{name}MultiArray" for name in _SCALARS if not name.endswith(("Bool", "Char")))


def _names(*groups: str) -> tuple[str, ...]:
    return tuple(
        f"{group}.{axis}"
        for group in groups
        for axis in ("xyzw" if "orient" in group or group == "rotation" else "xyz")
    )


def _xyz(vector: Any) -> list[float]:  # noqa: ANN401 - messages are of types made at run time
    return [vector.x, vector.y, vector.z]


def _xyzw(rotation: Any) -> list[float]:  # noqa: ANN401
    return [rotation.x, rotation.y, rotation.z, rotation.w]


def _pose(pose: Any) -> Row:  # noqa: ANN401
    return [*_xyz(pose.position), *_xyzw(pose.orientation)], _names("position", "orientation")


def _twist(twist: Any) -> Row:  # noqa: ANN401
    return [*_xyz(twist.linear), *_xyz(twist.angular)], _names("linear", "angular")


def _wrench(wrench: Any) -> Row:  # noqa: ANN401
    return [*_xyz(wrench.force), *_xyz(wrench.torque)], _names("force", "torque")


def _transform(transform: Any) -> Row:  # noqa: ANN401
    return [*_xyz(transform.translation), *_xyzw(transform.rotation)], _names("translation", "rotation")


def _imu(imu: Any) -> Row:  # noqa: ANN401
    values = [*_xyz(imu.linear_acceleration), *_xyz(imu.angular_velocity), *_xyzw(imu.orientation)]
    return values, _names("linear_acceleration", "angular_velocity", "orientation")


def _odometry(odometry: Any) -> Row:  # noqa: ANN401
    pose, twist = odometry.pose.pose, odometry.twist.twist
    values = [*_xyz(pose.position), *_xyzw(pose.orientation), *_xyz(twist.linear), *_xyz(twist.angular)]
    return values, _names("position", "orientation", "linear", "angular")


def _joints(message: Any) -> Row:  # noqa: ANN401
    names = list(message.name)
    values = list(message.position)
    named = len(names) == len(values) == len(set(names)) and all(names)
    return values, names if named else None


def _trajectory(message: Any) -> Row:  # noqa: ANN401
    points = list(message.points)
    values = list(points[0].positions) if points else []
    names = list(message.joint_names)
    return values, names if len(names) == len(values) == len(set(names)) else None


def _joy(message: Any) -> Row:  # noqa: ANN401
    axes, buttons = list(message.axes), list(message.buttons)
    return [*axes, *buttons], [*(f"axis_{i}" for i in range(len(axes))), *(f"button_{i}" for i in range(len(buttons)))]


def _gripper(message: Any) -> Row:  # noqa: ANN401
    return [message.position, message.max_effort], ("position", "max_effort")


def _jog(message: Any) -> Row:  # noqa: ANN401
    names = list(message.joint_names)
    values = [*message.displacements, *message.velocities]
    said = [f"{name}.{what}" for what in ("displacement", "velocity") for name in names]
    return values, said if len(said) == len(values) else None


def _many(message: Any) -> Row:  # noqa: ANN401
    names, values = list(message.dof_names), list(message.values)
    return values, names if len(names) == len(values) else None


_TABLE: dict[str, Callable[[Any], Row]] = {
    "sensor_msgs/msg/JointState": _joints,
    "sensor_msgs/msg/Imu": _imu,
    "sensor_msgs/msg/Joy": _joy,
    "nav_msgs/msg/Odometry": _odometry,
    "geometry_msgs/msg/Pose": _pose,
    "geometry_msgs/msg/PoseStamped": lambda message: _pose(message.pose),
    "geometry_msgs/msg/Twist": _twist,
    "geometry_msgs/msg/TwistStamped": lambda message: _twist(message.twist),
    "geometry_msgs/msg/Wrench": _wrench,
    "geometry_msgs/msg/WrenchStamped": lambda message: _wrench(message.wrench),
    "geometry_msgs/msg/Transform": _transform,
    "geometry_msgs/msg/TransformStamped": lambda message: _transform(message.transform),
    "trajectory_msgs/msg/JointTrajectory": _trajectory,
    "control_msgs/msg/GripperCommand": _gripper,
    "control_msgs/msg/GripperCommandStamped": lambda message: _gripper(message.command),
    "control_msgs/msg/JointJog": _jog,
    "control_msgs/msg/MultiDOFCommand": _many,
    **dict.fromkeys(_SCALARS, lambda message: ([message.data], None)),
    **dict.fromkeys(_ARRAYS, lambda message: (message.data, None)),
}


def is_numeric(kind: str) -> bool:
    """Whether messages of a type become rows."""
    return kind in _TABLE


class Rows:
    """The rows of one topic, gathered message by message.

    The first message with any number in it fixes the width. Where messages name their numbers (joints), later ones are
    put into the order of the names, numbers that a message lacks keep their last value, and names that come later
    widen the rows; else later rows are cut, or filled with NaN.
    """

    def __init__(self, kind: str) -> None:
        self._extract = _TABLE[kind]
        self.names: list[str] | None = None
        self.width = 0
        self.kept = array("q")
        """Messages that have a row, by their number."""
        self._values = array("d")
        self._parts: list[tuple[int, int]] = []
        self._filled_from: list[int] = []
        self._last: list[float] = []
        self._count = 0
        self._empty = self._uneven = self._nameless = 0

    def add(self, message: Any) -> None:  # noqa: ANN401
        """Take the next message."""
        values, names = self._extract(message)
        number = self._count
        self._count += 1
        if any(isinstance(value, str) for value in values):  # of JSON
            raise TypeError("it holds text where numbers are wanted")
        row = [float(value) for value in values]
        if not row:
            self._empty += 1
            return
        if not self.width:
            self.names = None if names is None else list(names)
            self._widen(len(row), 0)
        if self.names is not None and names is not None:
            row = self._by_name(row, names)
        elif self.names is not None or len(row) != self.width:
            self._nameless += self.names is not None and len(row) == self.width
            self._uneven += len(row) != self.width
            row = [*row[: self.width], *[float("nan")] * (self.width - len(row))]
        self._last = row
        self.kept.append(number)
        self._values.extend(row)

    def _widen(self, width: int, row: int) -> None:
        """From this row on rows are so wide."""
        self.width = width
        self._parts.append((row, width))
        self._filled_from += [row] * (width - len(self._filled_from))

    def _by_name(self, row: list[float], names: Sequence[str]) -> list[float]:
        assert self.names is not None
        if list(names) == self.names:
            return row
        new = [name for name in names if name not in self.names]
        if new:
            self.names += new
            self._widen(len(self.names), len(self.kept))
        out = [*self._last, *[float("nan")] * (self.width - len(self._last))]
        places = {name: place for place, name in enumerate(self.names)}
        for name, value in zip(names, row, strict=True):
            out[places[name]] = value
        return out

    def array(self) -> npt.NDArray[np.float64]:
        """(N, D); numbers that were named only later have the value they had first."""
        values = np.array(self._values, np.float64)
        out = np.empty((len(self.kept), self.width))
        ends = [*(row for row, _ in self._parts[1:]), len(self.kept)]
        at = 0
        for (row, width), end in zip(self._parts, ends, strict=True):
            count = (end - row) * width
            out[row:end, :width] = values[at : at + count].reshape(end - row, width)
            out[row:end, width:] = np.nan
            at += count
        for column, row in enumerate(self._filled_from):
            if row:
                out[:row, column] = out[row, column]
        return out

    def warnings(self, topic: str) -> list[str]:
        """What had to be done to make all rows alike."""
        found = []
        if self._empty:
            found.append(f"{topic}: {self._empty} messages hold no number and are left out")
        if self._uneven:
            found.append(
                f"{topic}: {self._uneven} messages don't have the {self.width} numbers of the first; they are cut, or "
                "filled with NaN"
            )
        if self._nameless:
            found.append(
                f"{topic}: {self._nameless} messages don't name their numbers; the order of the first is taken"
            )
        late = [name for name, row in zip(self.names or (), self._filled_from, strict=False) if row]
        if late:
            found.append(
                f"{topic}: {', '.join(late[:4])} {'come' if len(late) > 1 else 'comes'} only in later messages; "
                "earlier rows have the value they had first"
            )
        return found
